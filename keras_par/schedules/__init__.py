"""Learning rates that grow with the number of ranks, and a warm-up that leads to them."""

from keras_par.schedules.scaled import Scaled as Scaled
from keras_par.schedules.scaled import scaled as scaled
from keras_par.schedules.warm_up import WarmUp as WarmUp
