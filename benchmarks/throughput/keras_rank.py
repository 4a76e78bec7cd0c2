"""Trains a workload with Keras in one process of a team: by fit, alone or distributed, or by a hand-written loop."""

import argparse
import contextlib
import functools
import json
import os
import time
import tomllib

from benchmarks.jobs import REPOSITORY
from benchmarks.throughput.phases import phases
from benchmarks.throughput.turns import serve
from benchmarks.throughput.workloads import WORKLOADS, Workload, share


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--ranks", type=int, default=2, help="how many ranks share a step's rows (%(default)s)")
    parser.add_argument("--rank", type=int, default=0, help="this one, where no launcher says it (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of an operation (%(default)s)")
    args = parser.parse_args()
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(args.threads)
        tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    import keras

    keras.utils.set_random_seed(1)
    serve(*SYSTEMS[args.system](WORKLOADS[args.workload], args))


def independent(workload: Workload, args):
    """One rank's rows in a process that knows of no other: the bound."""
    return with_phases(workload, epochs_of(compiled(workload), batches(workload, args.rank, args.ranks)))


def plain(workload: Workload, args):
    """All rows in one process."""
    return with_phases(workload, epochs_of(compiled(workload), batches(workload, 0, 1, args.ranks)))


def keras_par(workload: Workload, args, **options):
    """This package, which cuts the global batches itself; options are of its strategy.

    Batch normalization sees a rank's rows only, as in all systems that it is compared with.
    """
    import keras_par as kp

    kp.init()
    assert kp.size() == args.ranks
    with kp.DataParallel(sync_batch_norm=False, **options).scope():
        model = compiled(workload)

    def sent():
        calls = kp.describe(model).collectives["train_step"]
        return {"collectives": len(calls), "bytes": sum(call.num_bytes or 0 for call in calls)}

    return with_phases(workload, epochs_of(model, batches(workload, 0, 1, args.ranks)), sent)


def megatron(workload: Workload, args):
    """This package with a model divided over the ranks, by the catalogue's layout."""
    import keras_par as kp

    kp.init()
    assert kp.size() == args.ranks
    with kp.load_strategy("megatron", mesh={"batch": 1, "model": args.ranks}).scope():
        model = compiled(workload)
    return with_phases(workload, epochs_of(model, batches(workload, 0, 1, args.ranks)))


def loop(workload: Workload, args, dense: bool = False):
    """The loop that Horovod's documentation shows, with all gradients in one group."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    assert hvd.size() == args.ranks
    model = workload.build()
    optimizer, loss_of = optimizer_of(workload), loss()
    variables = model.trainable_variables
    optimizer.build(variables)
    hvd.broadcast_variables([variable.value for variable in variables], root_rank=0)
    data = batches(workload, hvd.rank(), hvd.size())["x"]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss_of(y, model(x, training=True))
        optimizer.apply(mean_over_ranks(tape.gradient(value, variables)), variables)
        return value

    def mean_over_ranks(gradients):
        if dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        places = [i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        means = hvd.grouped_allreduce([gradients[i] for i in places])
        result = [None if isinstance(gradient, tf.Tensor) else hvd.allreduce(gradient) for gradient in gradients]
        for i, mean in zip(places, means, strict=True):
            result[i] = mean
        return result

    def epoch():
        begin = time.perf_counter()
        for x, y in data:
            value = step(x, y)
        float(value)  # waits for the last step
        return time.perf_counter() - begin

    return with_phases(workload, epoch)


def loop_dense(workload: Workload, args):
    """The same with the gradients of embeddings made dense."""
    return loop(workload, args, dense=True)


def reduction(workload: Workload, args):
    """Only the all-reduce of gradients of these shapes, in one group: what a rank could save by overlapping it."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    values = [tf.zeros(variable.shape) for variable in workload.build().trainable_variables]

    @tf.function
    def step():
        return hvd.grouped_allreduce([tf.identity(value) for value in values])

    def epoch():
        begin = time.perf_counter()
        for _ in range(workload.num_steps):
            step()
        return time.perf_counter() - begin

    return epoch, dict


def mirrored(workload: Workload, args):
    """TensorFlow's own strategy over logical devices of one process."""
    import tensorflow as tf

    [processor] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * args.ranks)
    with tf.distribute.MirroredStrategy([f"CPU:{rank}" for rank in range(args.ranks)]).scope():
        model = compiled(workload)
    return epochs_of(model, batches(workload, 0, 1, args.ranks)), dict


def multi_worker(workload: Workload, args):
    """TensorFlow's own strategy over processes."""
    import tensorflow as tf

    addresses = os.environ["BENCHMARK_WORKERS"].split(",")
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": args.rank}}
    os.environ["TF_CONFIG"] = json.dumps(task)
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = compiled(workload)
    return epochs_of(model, batches(workload, 0, 1, args.ranks)), dict


def jax_devices(workload: Workload, args):
    """Keras's own data parallelism on JAX, over devices of one process."""
    import jax
    import keras

    assert len(jax.devices()) == args.ranks
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return epochs_of(compiled(workload), arrays(workload, 0, 1, args.ranks)), dict


def jax_megatron(workload: Workload, args):
    """Keras's own model parallelism on JAX, over devices of one process, by the same layout."""
    import jax
    import keras

    assert len(jax.devices()) == args.ranks
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, args.ranks), ("batch", "model")))
    layout = tomllib.loads((REPOSITORY / "strategies" / "megatron.toml").read_text())["layout"]
    for pattern, said in layout.items():
        if said["axes"] != "replicate":
            layout_map[pattern] = tuple(None if axis == "-" else axis for axis in said["axes"])
    strategy = keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
    keras.distribution.set_distribution(strategy)
    return epochs_of(compiled(workload), arrays(workload, 0, 1, args.ranks)), dict


def jax_processes(workload: Workload, args):
    """The same over processes."""
    import jax
    import keras

    jax.distributed.initialize(os.environ["BENCHMARK_WORKERS"].split(",")[0], args.ranks, args.rank)
    assert len(jax.devices()) == args.ranks
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    return epochs_of(compiled(workload), arrays(workload, args.rank, args.ranks)), dict


SYSTEMS = {
    "independent": independent,
    "plain": plain,
    "keras-par": keras_par,
    "keras-par-bf16": functools.partial(keras_par, compression="bf16"),
    **{f"zero-{stage}": functools.partial(keras_par, zero=stage) for stage in (1, 2, 3)},
    "loop": loop,
    "loop-dense": loop_dense,
    "reduction": reduction,
    "mirrored": mirrored,
    "multi-worker": multi_worker,
    "megatron": megatron,
    "jax-devices": jax_devices,
    "jax-megatron": jax_megatron,
    "jax-processes": jax_processes,
}


def with_phases(workload: Workload, epoch, about=dict) -> tuple:
    """The epoch, and `about` with the phases of a step."""
    return epoch, lambda: {**about(), "phases": phases(epoch, workload.num_steps)}


def compiled(workload: Workload):
    model = workload.build()
    model.compile(optimizer_of(workload), loss())
    return model


def optimizer_of(workload: Workload):
    import keras

    rate = workload.learning_rate
    return keras.optimizers.Adam(1e-4) if rate is None else keras.optimizers.SGD(rate)


def loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def arrays(workload: Workload, rank: int, size: int, ranks_per_batch: int = 1) -> dict:
    """What `fit` takes of the rows of one of `size` readers, in batches for `ranks_per_batch` ranks."""
    batch_size = workload.rows_per_rank * ranks_per_batch
    x, y = (share(array, rank, size) for array in workload.rows(batch_size * workload.num_steps * size))
    return {"x": x, "y": y, "batch_size": batch_size, "shuffle": False}


def batches(workload: Workload, rank: int, size: int, ranks_per_batch: int = 1) -> dict:
    """The same as a tf.data.Dataset."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # or an epoch ends only when its thread wakes
    rows = arrays(workload, rank, size, ranks_per_batch)
    data = tf.data.Dataset.from_tensor_slices((rows["x"], rows["y"])).batch(rows["batch_size"], drop_remainder=True)
    return {"x": data.prefetch(2).with_options(options)}


def epochs_of(model, data: dict):
    """A function that trains an epoch and returns its seconds, without those that fit needs to start and to end."""
    import keras

    moments: dict[str, float] = {}

    def end(epoch, logs):
        if keras.config.backend() == "jax":  # which may still be at the last step
            import jax

            jax.block_until_ready([variable.value for variable in model.variables])
        moments["end"] = time.perf_counter()

    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: moments.update(begin=time.perf_counter()), on_epoch_end=end
    )

    def epoch():
        model.fit(**data, verbose=0, callbacks=[callback])
        return moments["end"] - moments["begin"]

    return epoch


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
