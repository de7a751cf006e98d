"""Model calls recorded and replayed, streams too, without touching the agent's code.

    client = OpenAI(http_client=kb.llm.http_client(openai))
    client = AsyncAnthropic(http_client=kb.llm.async_http_client(anthropic))
    with kb.llm.recording(): …     # clients that somebody else makes

What a workflow itself asks with such a client is a step of kind ``llm``, a list of models as well;
`recording` takes only what looks like a call of a model, or the hosts that it is given. The id is
``llm``, ``llm#2`` … in the order of the branch, or ``llm@<hash of the request>`` where another
task or thread makes it.
Request headers are never written.
"""

from .clients import async_http_client, http_client, recording
from .pricing import Price, prices

__all__ = ["Price", "async_http_client", "http_client", "prices", "recording"]
