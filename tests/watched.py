"""Shows as JSON, a state a line, what an agent sees of a program until something is so.

watched.py PROGRAM has_closed|quiet|is_writing [reads]
"""

import json
import sys
import time

from keras_par.agent.rank_process import RankProcess
from tests.ranks.pool import environment

program, wanted, *how = sys.argv[1:]
LAST = {"has_closed": 1, "is_writing": 60, "quiet": 1}  # how often it must be so
process = RankProcess([sys.executable, "-c", program], environment(), merge_stderr=False)
times = 0
while times < LAST[wanted]:
    assert process.poll() is None
    state = vars(process.state(0))
    print(json.dumps(state))
    times += state[wanted] > 1 if wanted == "quiet" else state[wanted]
    if how and process.stdout is not None:
        process.num_taken += len(process.stdout.read(1000) or b"")
    time.sleep(0.02)
process.kill()
