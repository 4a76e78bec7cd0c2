"""Trains a network that does not fit: each rank may have so much memory, and `--zero 3` divides the model over them.

    keras-par run -np 2 examples/fsdp.py --zero 0    # is out of memory
    keras-par run -np 2 examples/fsdp.py --zero 3    # trains

The limit is Linux's on the memory that a process may take for data. It begins once everything is loaded.
"""

import argparse
import resource

import keras
import numpy as np

import keras_par as kp

BATCH_SIZE, NUM_STEPS = 32, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zero", type=int, default=3, choices=[0, 1, 2, 3], help="what the ranks divide")
    parser.add_argument("--megabytes", type=int, default=700, help="of memory that a rank may have for the network")
    parser.add_argument("--width", type=int, default=2048, help="of each layer")
    parser.add_argument("--layers", type=int, default=12, help="how many there are")
    arguments = parser.parse_args()

    kp.init()
    keras.utils.set_random_seed(1)
    with kp.DataParallel(zero=arguments.zero).scope():
        fit(network(16, 2))  # loads what TensorFlow loads at the first step
        limit_memory(arguments.megabytes)
        model = network(arguments.width, arguments.layers)
        history = fit(model)
    if kp.rank() == 0:
        weights = 4 * model.count_params() / 2**20
        print(f"{weights:.0f} MB of weights; with gradients and Adam's state four times as much: {4 * weights:.0f} MB")
        print(f"trained by {kp.size()} ranks of {arguments.megabytes} MB; losses {history.history['loss']}")


def network(width: int, num_layers: int) -> keras.Model:
    hidden = [keras.layers.Dense(width, "relu") for _ in range(num_layers)]
    model = keras.Sequential([keras.Input((width,)), *hidden])
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


def fit(model: keras.Model) -> keras.callbacks.History:
    x = np.random.default_rng(0).normal(size=(BATCH_SIZE * NUM_STEPS, model.input_shape[1])).astype("float32")
    return model.fit(x, x, batch_size=BATCH_SIZE, epochs=2, verbose=0)


def limit_memory(megabytes: int) -> None:
    """Lets this process have so much more memory than it has now."""
    with open("/proc/self/status") as status:
        now = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    limit = now + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    main()
