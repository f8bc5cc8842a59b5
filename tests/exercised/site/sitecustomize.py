"""What Python loads first where PYTHONPATH leads here: in a run of tests, and in processes that it starts."""

import importlib.util
import sys
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("recorder", Path(__file__).parents[1] / "recorder.py")
assert SPEC and SPEC.loader
recorder = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(recorder)
sys.meta_path.insert(0, recorder.Changer())
