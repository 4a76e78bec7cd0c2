"""Trains ResNet-50 on CIFAR-10, data-parallel, on as many ranks as it is started on.

keras-par run -np 2 examples/resnet50.py --image-size 64
"""

import cifar
import keras
from mnist import weight_hash

import keras_par as kp


def main():
    args = cifar.arguments(__doc__.splitlines()[0], batch_size=32)
    kp.init()
    keras.distribution.set_distribution(kp.DataParallel())
    data = cifar.load(args)
    keras.utils.set_random_seed(1)

    # Its batch normalization has no synchronized=True: each rank normalizes its own 32 rows, so N ranks train as N
    # separate batches of 32 would, not as one of 32 N. The moving means, which evaluate uses, are averaged.
    model = keras.applications.ResNet50(
        weights=None, classes=10, input_shape=(args.image_size, args.image_size, 3), classifier_activation=None
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
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


if __name__ == "__main__":
    main()
