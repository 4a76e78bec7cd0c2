"""Callbacks that speak for the whole job."""

from keras_par.callbacks.callback import Callback as Callback
from keras_par.callbacks.loss_monitor import LossMonitor as LossMonitor
from keras_par.callbacks.progress_bar import ProgressBar as ProgressBar
from keras_par.callbacks.rank_checkpoint import RankCheckpoint as RankCheckpoint
from keras_par.callbacks.resume import Resume as Resume
