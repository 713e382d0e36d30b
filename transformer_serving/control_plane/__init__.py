"""The part of the ClearML API and file server that one machine needs, over SQLite and a folder.

The unmodified ClearML SDK, the clearml-serving CLI, its inference app and our Triton controller
are its callers. A request's way: `app.py` (routes, login, envelope) -> one handler a method in
`methods/` -> `store.py`; file bytes go through `files/`.
"""
