"""Makes a variable, a dataset and a model before `kp.init()`, and looks whether they live on: made_before.py WHEN

keras_par is imported "first", "second", which is behind Keras, or "late", which is behind all that is made.
"""

import json
import sys

if "first" in sys.argv:
    import keras_par as kp

    assert "tensorflow" not in sys.modules and kp.GradientReducer  # which imports TensorFlow
import keras
import numpy as np
import tensorflow as tf

if "second" in sys.argv:
    import keras_par as kp

variable, numbers = tf.Variable([1.0, 2.0], name="early"), tf.constant([3.0])
dataset = tf.data.Dataset.range(3).map(lambda number: 2 * number)
iterator = iter(dataset)
next(iterator)
double = tf.function(lambda x: 2 * x * variable)
double(numbers)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((8, 2), "float32")
model.fit(rows, rows[:, :1], batch_size=4, verbose=0)

if "late" in sys.argv:
    import keras_par as kp

kp.init()
variable.assign_add([1.0, 1.0])
found = [variable.numpy().tolist(), list(map(int, dataset)), int(next(iterator)), double(numbers).numpy().tolist()]
with kp.DataParallel().scope():
    history = model.fit(rows, rows[:, :1], batch_size=4, verbose=0).history["loss"]
print(f"lives on: {json.dumps([kp.rank(), kp.size(), *found, history])}", flush=True)
