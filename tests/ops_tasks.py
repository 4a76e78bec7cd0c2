"""What the ranks of a pool do for the tests of `kp.ops`: losses across the batch, and gradients of collectives."""

import keras
import numpy as np
import tensorflow as tf

from tests.cases import arrays, crossentropy, network
from tests.step_cases import Own
from tests.tasks import seed, strategy_scope


def ops_of(distributed: bool):
    """`all_gather`, `row_offset` and the sum over ranks; of one process where keras_par must not be imported."""
    if distributed:
        import keras_par as kp

        return kp.ops.all_gather, kp.ops.row_offset, kp.ops.all_reduce
    return (lambda x: x), (lambda x: tf.zeros([], tf.int64)), (lambda x, op="sum": x)


def rows_part(distributed: bool):
    """A step by SimCLR's loss, of which each rank computes the mean over its rows, by two views of each row."""
    gather, offset, _ = ops_of(distributed)

    def step(model, x, y):
        with tf.GradientTape() as tape:
            one, two = (tf.math.l2_normalize(model(view, training=True), 1) for view in (x, 0.5 * x + 0.1))
            others = gather(two)
            labels = offset(two) + tf.range(tf.shape(one, tf.int64)[0])
            similar = tf.matmul(one, others, transpose_b=True) / 0.5
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, similar, from_logits=True))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.5)
        model.optimizer.apply(gradients, model.trainable_variables)
        return model.logs(loss)

    return step


def whole(distributed: bool):
    """A step by a supervised contrastive loss, of which each rank computes all."""
    gather, *_ = ops_of(distributed)

    def step(model, x, y):
        with tf.GradientTape() as tape:
            embedded, labels = gather(tf.math.l2_normalize(model(x, training=True), 1)), gather(y)
            alike = tf.cast(labels[:, None] == labels[None], tf.float32)
            similar = tf.matmul(embedded, embedded, transpose_b=True) / 0.5
            logs = tf.nn.log_softmax(similar)
            loss = -tf.reduce_mean(tf.reduce_sum(alike * logs, 1) / tf.reduce_sum(alike, 1))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.5)
        model.optimizer.apply(gradients, model.trainable_variables)
        return model.logs(loss)

    return step


def hardest(distributed: bool):
    """A step by the largest distance of any row from the batch's mean, by reductions over ranks."""
    _, _, reduce = ops_of(distributed)

    def step(model, x, y):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            center = reduce(tf.reduce_mean(outputs, 0), "mean")
            worst = reduce(tf.reduce_max(tf.reduce_sum(tf.square(outputs - center), 1)), "max")
            loss = worst + 0.01 * reduce(tf.reduce_sum(tf.square(outputs)))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.5)
        model.optimizer.apply(gradients, model.trainable_variables)
        return model.logs(loss)

    return step


def in_a_loss(distributed: bool):
    """Keras's own step, with a loss that compares rows with those of all ranks."""
    gather, offset, _ = ops_of(distributed)

    class AcrossBatch(keras.losses.Loss):
        def call(self, y_true, y_pred):
            others = gather(y_pred)
            labels = offset(y_pred) + tf.range(tf.shape(y_pred, tf.int64)[0])
            similar = tf.matmul(y_pred, others, transpose_b=True)
            return keras.losses.sparse_categorical_crossentropy(labels, similar, from_logits=True)

    return AcrossBatch()


STEPS = {"rows-part": rows_part, "whole": whole, "hardest": hardest}


def train(kind: str, num_rows: int, distributed: bool) -> dict:
    """Weights and logs after training by a loss across the batch."""
    seed(distributed)
    with strategy_scope(distributed):
        if kind == "in-a-loss":
            model = network()
            model.compile(keras.optimizers.SGD(0.1), in_a_loss(distributed))
        else:
            model = Own(network(), STEPS[kind](distributed))
            model.compile(keras.optimizers.SGD(0.1), crossentropy())
        history = model.fit(**arrays(num_rows), verbose=0)
    return {"weights": model.get_weights(), "logs": history.history}


def by_hand() -> dict:
    """Values and gradients of each collective outside of a step, where rank r has r + 1 rows, and their rank."""
    import keras_par as kp

    rank, size = kp.rank(), kp.size()
    rows = tf.reshape(tf.range(2.0 * (rank + 1)), [rank + 1, 2]) + 10.0 * rank
    same = tf.fill([2 * size], float(rank + 1))
    found = {"rank": rank, "size": size, "offset": int(kp.ops.row_offset(rows))}
    calls = {
        "all_gather": (rows, kp.ops.all_gather),
        "sum": (same, kp.ops.all_reduce),
        "mean": (same, lambda x: kp.ops.all_reduce(x, "mean")),
        "max": (same, lambda x: kp.ops.all_reduce(x, "max")),
        "min": (same, lambda x: kp.ops.all_reduce(x, "min")),
        "max of equals": (tf.ones_like(same), lambda x: kp.ops.all_reduce(x, "max")),
        "all_to_all": (same * tf.range(2.0 * size), kp.ops.all_to_all),
        "broadcast": (same, lambda x: kp.ops.broadcast(x, size - 1)),
    }
    for name, (x, call) in calls.items():
        for how in ("eager", "graph"):
            function = call if how == "eager" else tf.function(call, autograph=False)
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = function(x)
                # another weight for each rank and element
                weights = (rank + 1.0) * tf.reshape(
                    tf.range(1.0, 1.0 + float(tf.size(result)), dtype=tf.float32), result.shape
                )
                total = tf.reduce_sum(result * weights)
            found[name, how] = (result.numpy(), tape.gradient(total, x).numpy())
    found["integers"] = kp.ops.all_gather(tf.fill([rank + 1], rank)).numpy().tolist()
    return found


def misuse() -> list[str]:
    """What is said of collectives that cannot be."""
    import keras_par as kp

    said = []

    def loop():
        return tf.while_loop(lambda i: i < 2, lambda i: i + tf.cast(kp.ops.all_reduce(1.0), tf.int32), [0])

    for call in (
        lambda: kp.ops.all_reduce(1.0, "product"),
        lambda: kp.ops.broadcast(1.0, 7),
        lambda: kp.ops.all_to_all(np.zeros(2 * kp.size() + 1, "float32")),
        tf.function(loop, autograph=False),
    ):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    return said
