"""Without the extra `papm[serve]` there is nothing to test here."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("starlette") else ["test_*.py"]
