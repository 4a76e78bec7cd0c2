"""Trains ResNet-50 on CIFAR-10, data-parallel, on as many ranks as it is started on.

keras-par run -np 2 examples/resnet50.py --image-size 64
keras-par run -np 2 examples/resnet50.py --image-size 64 --auto
"""

import functools

import cifar
import keras
from mnist import weight_hash

import keras_par as kp


def main():
    args = cifar.arguments(__doc__.splitlines()[0], batch_size=32, has_auto=True)
    kp.init()
    if args.auto:
        strategy = kp.search(functools.partial(build, args.image_size), args.batch_size * kp.size())
        if kp.rank() == 0:
            print(strategy.explain())
    else:
        strategy = kp.DataParallel()
    keras.distribution.set_distribution(strategy)
    data = cifar.load(args)
    keras.utils.set_random_seed(1)
    model = build(args.image_size)
    model.fit(
        data.train,
        epochs=args.epochs,
        steps_per_epoch=data.steps_per_epoch,
        shuffle=False,  # the dataset shuffles
        verbose=0,
        callbacks=[kp.callbacks.ProgressBar()],
    )
    loss, accuracy = model.evaluate(data.test, verbose=0)

    print(f"rank {kp.rank()} of {kp.size()}: weights {weight_hash(model)}", flush=True)
    if kp.rank() == 0:
        print(f"{data.name}: test loss {loss:.4f}, test accuracy {accuracy:.4f}")


def build(image_size: int) -> keras.Model:
    """ResNet-50 for ten classes, compiled."""
    # Its batch normalization sees the rows of all ranks, as in one process that trains on the same batches.
    # kp.DataParallel(sync_batch_norm=False) would let each rank normalize its own 32 rows, which sends less.
    model = keras.applications.ResNet50(
        weights=None, classes=10, input_shape=(image_size, image_size, 3), classifier_activation=None
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


if __name__ == "__main__":
    main()
