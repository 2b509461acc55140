import sys
from pathlib import Path

# reference.py and cases.py, from wherever pytest is called.
sys.path.insert(0, str(Path(__file__).parent))
