"""What the ranks of a pool do for the tests of what steps of users' own return, keep, and are refused."""

import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.cases import arrays, crossentropy, network, rows
from tests.ops_tasks import ops_of
from tests.step_cases import Own
from tests.tasks import seed, strategy_scope


class Guide(keras.Model):
    """The step of Keras's guide, which returns all metrics, and numbers of its own."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def call(self, x, training=None):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, outputs)
        return {metric.name: metric.result() for metric in self.metrics} | {"mean": tf.reduce_mean(outputs)}


def logs(distributed: bool) -> dict:
    """The logs of each epoch and step, whose last batch has 11 rows."""
    seed(distributed)
    seen = []
    with strategy_scope(distributed):
        model = Guide()
        model.compile(keras.optimizers.SGD(0.1), crossentropy(), metrics=["accuracy"])
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    history = model.fit(**arrays(), verbose=0, callbacks=[callback])
    return {"logs": history.history, "steps": [{k: float(v) for k, v in each.items()} for each in seen if each]}


class Queue(Own):
    """Keeps the last 16 rows of embeddings, as MoCo and NNCLR do."""

    def __init__(self, inner, step):
        super().__init__(inner, step)
        self.queue = self.add_weight(shape=(16, 3), initializer="zeros", trainable=False, name="queue")


def keep(gathered: bool, distributed: bool) -> dict:
    """What is left in a queue of rows that a step fills, with those of all ranks or not, and the warnings."""
    gather = ops_of(distributed and gathered)[0]

    def step(model, x, y):
        loss, gradients = model.taken(x, y)
        model.optimizer.apply(gradients, model.trainable_variables)
        newest = gather(model(x))
        model.queue.assign(tf.concat([newest, model.queue.value], 0)[:16])
        return model.logs(loss)

    seed(distributed)
    with strategy_scope(distributed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = Queue(network(), step)
        model.compile(keras.optimizers.SGD(0.1), crossentropy())
        model.fit(**arrays(), verbose=0)
    said = [str(each.message) for each in caught if "keras-par" in str(each.message)]
    return {"queue": model.queue.numpy(), "weights": model.get_weights(), "warnings": said}


def stateful(distributed: bool) -> dict:
    """The weights and the states' sum of squares of a stateful RNN after two calls of fit."""
    num_rows = 8
    if distributed:
        import keras_par as kp

        num_rows = kp.local_batch_size(8)
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(32, 5, 3)).astype("float32"), generator.normal(size=(32, 2)).astype("float32")
    seed(distributed)
    with strategy_scope(distributed):
        inputs = layers.Input(batch_shape=(num_rows, 5, 3))
        rnn = layers.SimpleRNN(4, stateful=True)
        model = keras.Model(inputs, layers.Dense(2)(rnn(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    for _ in range(2):
        model.fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0)
    weights = [variable.numpy() for variable in model.trainable_variables]
    return {"weights": weights, "states": [np.asarray(state) for state in rnn.states]}


def float8(distributed: bool, **options) -> dict:
    """All variables of a network that is trained in float8, and their paths."""
    seed(distributed)
    with strategy_scope(distributed, **options):
        model = network()
        model.quantize("float8")
        model.compile(keras.optimizers.SGD(0.1), crossentropy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(**arrays(64), verbose=0)
    return {variable.path.split("/", 1)[1]: np.asarray(variable.value) for variable in model.variables}


def tune_quantized(distributed: bool, mode: str = "int8") -> dict:
    """Trains adapters beside kernels of 8 bits, saves and loads them; the kernels' dims here and whole."""
    seed(distributed)
    options = {"zero": 3, "zero_min_kb": 0} if distributed else {}
    random = np.random.default_rng(1)
    with strategy_scope(distributed, **options):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(9, "relu"), keras.layers.Dense(4)])
        model.quantize(mode)
        for layer in model.layers:
            layer.enable_lora(2)
            layer.lora_kernel_b.assign(random.normal(size=layer.lora_kernel_b.shape))
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    x, y = random.normal(size=(16, 6)), random.normal(size=(16, 4))
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    packed = [each for each in model.variables if each.dtype == "int8" and each.name == "kernel"]
    return {
        "weights": model.get_weights(),
        "predicted": model.predict(x, verbose=0),
        "packed": [(tuple(each.shape), tuple(getattr(each, "local", each).shape)) for each in packed],
    }


def refused(kind: str) -> str:
    """The error of a model whose step or function cannot be, with its notes."""

    class OwnFunction(Guide):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: self.train_step(next(iterator))

    def constant(model, x, y):
        noise = tf.zeros([16, 8])
        return model.logs(tf.reduce_mean(model(x + noise)))

    with strategy_scope(True):
        model = OwnFunction() if kind == "function" else Own(network(), constant)
        model.compile("sgd", crossentropy())
    x, y = rows(64)
    try:
        model.fit(x, y, batch_size=16, verbose=0)
    except Exception as error:
        return "\n".join([type(error).__name__, str(error), *getattr(error, "__notes__", [])])
    return ""
