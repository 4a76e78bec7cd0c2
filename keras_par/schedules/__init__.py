"""Learning rates that grow with the number of ranks, and a warm-up that leads to them."""

from keras_par.schedules.rates import Scaled as Scaled
from keras_par.schedules.rates import WarmUp as WarmUp
from keras_par.schedules.rates import scaled as scaled
