"""One isolated JupyterLab, one headless Chromium, and the few gestures that tests need.

The sync API of playwright keeps an event loop on the test's thread while the browser is open, so
a module that uses `lab` cannot call `asyncio.run` in the same thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

import nbformat
from nbformat.sign import NotebookNotary
from playwright.sync_api import ConsoleMessage, Locator, Page, expect, sync_playwright

CHECKOUT = Path(__file__).resolve().parents[2]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "no Chromium found: install one or point KASSETTE_BROWSER at it"

CHROMIUM_ARGS = (
    "--no-sandbox",  # Chromium refuses to start as root with its sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# What JupyterLab says on its own account, as patterns over "text url".
HARMLESS = (
    # A fresh workspace, a missing setting: Lab asks first and falls back to its default.
    re.compile(r"Failed to load resource.*(/lab/api/|/api/me|favicon|\.map\b)"),
)

ANSI = re.compile(r"\x1b\[[0-9;]*m")

# The server dies with the process that started it, even when that one is killed outright: an
# orphaned Lab keeps its port, its kernels and a core. 1 is PR_SET_PDEATHSIG (prctl(2)).
SERVE = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() == 1:
        sys.exit("the test run is gone")
from jupyterlab.labapp import main
sys.exit(main())
"""

Theme = Literal["light", "dark", "dark high contrast"]


def find_browser() -> str | None:
    """The Chromium to use: `$KASSETTE_BROWSER`, else the first known name that runs."""
    chosen = os.environ.get("KASSETTE_BROWSER")
    paths = map(shutil.which, [chosen] if chosen else BROWSERS)
    return next((path for path in paths if path and _runs(path)), None)


def _runs(browser: str) -> bool:
    # Some distributions put a script under this name that only says how to install it.
    try:
        done = subprocess.run([browser, "--version"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def write_notebook(path: Path, cells: Sequence[str]) -> Path:
    """Write a notebook of code cells for the kernel of this interpreter."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        },
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def wait_until(
    condition: Callable[[], object], what: str, *, timeout: float = 30, every: float = 0.05
) -> None:
    """Wait until `condition` holds.

    Raises:
        TimeoutError: It did not within `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout} s: {what}")
        time.sleep(every)


@contextlib.contextmanager
def unwound_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that fixtures close the Lab and its kernels."""
    owner = os.getpid()

    def stop(signum: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            raise KeyboardInterrupt
        # A forked child inherited the handler: it dies as it would have without it.
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Server:
    """A JupyterLab that shares nothing with the user's: own directories, port and token."""

    def __init__(self, home: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.root = home / "root"
        self.data = home / "data"
        self.log = home / "lab.log"
        self.token = secrets.token_hex(16)
        self._home = home
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def __enter__(self) -> Server:
        config = self._home / "config"
        spec = self.data / "kernels" / "python3"
        for folder in (self.root, config / "labconfig", spec):
            folder.mkdir(parents=True)
        _write_json(
            config / "labconfig" / "page_config.json",
            {
                # Its pop-up lies over buttons.
                "disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True},
                # Two seconds of a core at every load.
                "buildAvailable": False,
                "buildCheck": False,
            },
        )
        # Another kernel of this name may come first on the machine's own path.
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        _write_json(
            spec / "kernel.json", {"argv": argv, "display_name": "Python 3", "language": "python"}
        )
        env = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")} | {
            "JUPYTER_CONFIG_DIR": str(config),
            "JUPYTER_DATA_DIR": str(self.data),
            "JUPYTER_RUNTIME_DIR": str(self._home / "runtime"),
            "JUPYTER_PREFER_ENV_PATH": "0",  # our kernel spec before the environment's
            "IPYTHONDIR": str(self._home / "ipython"),
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])
            ),
            # The debugger warns about frozen modules in every kernel's log.
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            **self._env,
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", SERVE, "--no-browser", "--allow-root"),
                    *("--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0"),
                    f"--IdentityProvider.token={self.token}",
                    f"--ServerApp.root_dir={self.root}",
                    # Neither looks for extensions on the network nor for language servers.
                    "--LabApp.extension_manager=readonly",
                    "--LanguageServerManager.autodetect=False",
                    # window.jupyterapp: what has no key of its own is done through its commands
                    "--LabApp.expose_app_in_browser=True",
                ],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self._answers, "JupyterLab answers", timeout=60, every=0.1)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def shutdown_kernels(self) -> None:
        """End every session and kernel."""
        for session in self.api("GET", "sessions"):
            self.api("DELETE", f"sessions/{session['id']}")
        for kernel in self.api("GET", "kernels"):
            self.api("DELETE", f"kernels/{kernel['id']}")

    def close(self) -> None:
        """End the kernels, then the server."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            self.shutdown_kernels()
        self._process.terminate()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            # Told to end while it lists the export formats, which every load asks for, it waits
            # for its own worker thread for ever. No kernel is left to be orphaned.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def api(self, method: str, path: str, body: object = None) -> Any:
        """One call of the server's REST interface; the decoded answer, None if it has no body."""
        request = urllib.request.Request(
            self.url(f"api/{path}"),
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
        return json.loads(content) if content else None

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text()[-4000:]}")
        try:
            self.api("GET", "status")
        except OSError:
            return False
        return True


class Lab:
    """A JupyterLab with one browser page on it.

    Cells are counted from 0. Every gesture waits until it has taken effect.
    """

    def __init__(self, server: Server, page: Page, shots: Path) -> None:
        self.server = server
        self.root = server.root
        self.page = page
        self.shots = shots
        self.path = ""
        self._errors: list[str] = []
        page.set_default_timeout(20_000)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._errors.append(f"{error.name}: {error.message}"))

    # ------------------------------------------------------------------------------ notebooks

    def write(self, path: str, cells: Sequence[str]) -> str:
        """Write a notebook of code cells into the Lab's root; its path."""
        write_notebook(self.root / path, cells)
        return path

    def open(self, path: str, *, kernel: bool = True) -> None:
        """Load the page anew with this notebook; without a kernel, none is started or reused."""
        self.path = path
        self._errors.clear()
        workspace = f"lab/workspaces/w{secrets.token_hex(4)}"
        query = f"token={self.server.token}&reset"
        if kernel:
            self.page.goto(self.server.url(f"{workspace}/tree/{path}?{query}"))
        else:
            self.page.goto(self.server.url(f"{workspace}?{query}"))
            self.page.wait_for_function("() => window.jupyterapp?.shell && jupyterapp.restored")
            self.page.evaluate("() => jupyterapp.restored.then(() => null)")
            preference = {"shouldStart": False, "canStart": False, "shouldReuse": False}
            self.command(
                "docmanager:open",
                {"path": path, "factory": "Notebook", "kernelPreference": preference},
            )
        self.notebook.locator(".jp-Cell").first.wait_for()
        if kernel:
            self.wait_idle()

    def reopen(self, *, trusted: bool = True, kernel: bool = False) -> None:
        """Save, end every kernel and load the same notebook anew: what a reader sees next day.

        Args:
            trusted: Sign the saved notebook first; otherwise it must not be trusted.
            kernel: Let Lab start a fresh kernel, which knows nothing of the saved widgets.
        """
        self.save()
        # The page must be gone first, or it reports the death of its kernel and restarts it.
        self.page.goto("about:blank")
        self.server.shutdown_kernels()
        if trusted:
            self.trust(self.path)
        else:
            self.distrust(self.path)
        self.open(self.path, kernel=kernel)

    def save(self) -> None:
        self.command("docmanager:save")

    def saved(self) -> Any:
        """The notebook as it lies on disk, an nbformat node."""
        return nbformat.read(self.root / self.path, as_version=4)

    def trust(self, path: str) -> None:
        """Sign the notebook as `jupyter trust` does; takes effect when it is opened next."""
        self._notary(path, NotebookNotary.sign)

    def distrust(self, path: str) -> None:
        """Take the signature back, which saving an executed notebook gave it."""
        self._notary(path, NotebookNotary.unsign)

    def _notary(self, path: str, act: Callable[[NotebookNotary, Any], None]) -> None:
        notary = NotebookNotary(data_dir=str(self.server.data))
        try:
            act(notary, nbformat.read(self.root / path, as_version=4))
        finally:
            notary.store.close()

    # ---------------------------------------------------------------------------------- cells

    @property
    def notebook(self) -> Locator:
        """The notebook in front."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def cell(self, index: int) -> Locator:
        return self.notebook.locator(f'.jp-Cell[data-windowed-list-index="{index}"]')

    def cell_output(self, index: int) -> Locator:
        """The cell's output area, all outputs in it."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """The cell's outputs as they would be saved, in nbformat's terms."""
        found = self.page.evaluate(
            "i => jupyterapp.shell.currentWidget.content.widgets[i].model.outputs.toJSON()", index
        )
        return list(found)

    def cell_count(self) -> int:
        return self.notebook.locator(".jp-Cell").count()

    def run_cell(
        self, index: int, *, wait: bool = True, allow_error: bool = False, timeout: float = 60
    ) -> None:
        """Run the cell as a person does, with Ctrl+Enter.

        Args:
            wait: Return when the cell has ended, otherwise when it has been taken up.
            allow_error: An exception in the cell is what the test wants.
            timeout: In seconds, for the cell to end.

        Raises:
            AssertionError: The cell raised; the message is its traceback.
        """
        cell = self.cell(index)
        prompt = cell.locator(".jp-InputArea-prompt")
        cell.scroll_into_view_if_needed()
        before = prompt.inner_text()
        # The indicator can say idle before the kernel is connected, and the key is lost then:
        # only a changed prompt proves that it arrived.
        for _ in range(5):
            self.wait_idle()
            # Into the text, not on the prompt: a click there leaves the focus in a widget, which
            # may keep the keys to itself.
            cell.locator(".cm-line").first.click()
            self.page.keyboard.press("Control+Enter")
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: prompt.inner_text() != before, "the prompt changes", timeout=2)
                break
        else:
            raise TimeoutError(f"cell {index} was never taken up")
        if not wait:
            return
        ended = re.compile(r"\[\d+\]")
        wait_until(lambda: ended.search(prompt.inner_text()), "the cell ends", timeout=timeout)
        # The number comes with the kernel's reply, which outputs may follow on their own channel.
        self.page.evaluate(
            """([index, limit]) => Promise.race([
                jupyterapp.shell.currentWidget.content.widgets[index].outputArea.future.done,
                new Promise((_, reject) => setTimeout(reject, limit, new Error("outputs missing"))),
            ]).then(() => null)""",
            [index, 10_000],
        )
        errors = [o for o in self.outputs(index) if o["output_type"] == "error"]
        if errors and not allow_error:
            raise AssertionError(ANSI.sub("", "\n".join(errors[0]["traceback"])))

    def run_all(self, *, timeout: float = 60) -> None:
        """Run every code cell in order; `timeout` is each one's."""
        for index in range(self.cell_count()):
            if "jp-CodeCell" in (self.cell(index).get_attribute("class") or ""):
                self.run_cell(index, timeout=timeout)

    # --------------------------------------------------------------------------------- kernels

    def wait_idle(self, timeout: float = 60) -> None:
        """Wait until the status bar says that the kernel is idle."""
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text(
            re.compile(r"\| Idle"), timeout=timeout * 1000
        )

    def restart_kernel(self) -> None:
        """Restart the notebook's kernel; outputs stay, the widgets' models are gone."""
        self.page.evaluate(
            "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )
        self.wait_idle()

    # ------------------------------------------------------------------------------------ page

    def command(self, name: str, args: Mapping[str, object] | None = None) -> None:
        """Execute one of Lab's commands and wait for it."""
        # Its result is a widget at times, which cannot be sent out of the page.
        self.page.evaluate(
            "([name, args]) => jupyterapp.commands.execute(name, args).then(() => null)",
            [name, dict(args or {})],
        )

    def set_theme(self, theme: Theme) -> None:
        """Change Lab's theme, as the settings menu does; it stays until changed again."""
        name = f"JupyterLab {theme.title()}"
        self.command("apputils:change-theme", {"theme": name})
        self.page.locator(f'body[data-jp-theme-name="{name}"]').wait_for(
            state="attached"  # its height is nil, which counts as hidden
        )

    def screenshot(self, name: str, of: Locator | None = None) -> Path:
        """A picture of the page, or of one element, in `shots`; its path."""
        self.shots.mkdir(parents=True, exist_ok=True)
        path = self.shots / f"{name}.png"
        (of or self.page).screenshot(path=path)
        return path

    @property
    def console_errors(self) -> list[str]:
        """Errors of the page since it was opened, without those known to be Lab's own."""
        return [e for e in self._errors if not any(p.search(e) for p in HARMLESS)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._errors.append(f"{message.text} {message.location.get('url', '')}")


@contextlib.contextmanager
def running_lab(
    home: Path, *, shots: Path, browser: str, env: Mapping[str, str] | None = None
) -> Iterator[Lab]:
    """A Lab and its browser, from nothing to nothing.

    Args:
        home: An empty folder; the notebooks' root is `home / "root"`.
        shots: Where screenshots go.
        browser: The Chromium to use.
        env: Variables for the server and its kernels.
    """
    with unwound_on_sigterm(), Server(home, env=env) as server, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            home / "profile",
            executable_path=browser,
            headless=True,
            args=list(CHROMIUM_ARGS),
            viewport={"width": 1360, "height": 1000},
        )
        try:
            yield Lab(server, context.pages[0], shots)
        finally:
            context.close()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
