"""The agent of a rank below one of Ray's actors, with which it dies, as when Ray takes the node away."""

import signal
import sys

from keras_par.agent.__main__ import main
from keras_par.agent.rank_process import PR_SET_PDEATHSIG, libc

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT, by which ranks hear of Ctrl-C
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.exit(main(["--", *sys.argv[1:]]))
