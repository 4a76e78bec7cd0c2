"""Two ranks give to one collective what the argument says, rank 1 something else than rank 0."""

import sys

import tensorflow as tf

import keras_par as kp
from keras_par.comm import world

kp.init()
communicator, is_first, case = world.current(), kp.rank() == 0, sys.argv[1]
for _ in range(2):
    communicator.all_reduce([tf.zeros([3])], "mine")
print("together", flush=True)
if case == "shape":
    communicator.all_reduce([tf.zeros([3 if is_first else 4])], "mine")
if case == "dtype":
    communicator.all_gather(tf.zeros([3], tf.float32 if is_first else tf.int32), "mine")
if case == "kind":
    tensor = tf.zeros([3])
    communicator.all_gather(tensor, "mine") if is_first else communicator.all_reduce([tensor], "mine")
if case == "graph":

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def add(x):
        return communicator.all_reduce([x], "mine")

    add(tf.zeros([3, 2]))
    add(tf.zeros([3 if is_first else 4, 2]))
