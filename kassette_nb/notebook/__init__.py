"""The debugger in the notebook: views over `Run` and `Runs`, and their static twins.

Imported only where something is shown; the runtime never imports it.
"""
