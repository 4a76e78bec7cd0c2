"""Trains MobileNetV2 on CIFAR-10 from rank 0's initial weights, on as many ranks as it is started on.

keras-par run -np 2 examples/mobilenet.py --image-size 64
"""

import cifar
import keras
from mnist import weight_hash

import keras_par as kp


def main():
    args = cifar.arguments(__doc__.splitlines()[0], batch_size=64)
    kp.init()
    data = cifar.load(args)
    keras.utils.set_random_seed(1 + kp.rank())  # other weights on each rank, until fit broadcasts those of rank 0

    with kp.DataParallel(broadcast_variables=True).scope():  # True is the default
        model = keras.applications.MobileNetV2(
            weights=None, classes=10, input_shape=(args.image_size, args.image_size, 3), classifier_activation=None
        )
        model.compile(
            keras.optimizers.SGD(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    print(f"rank {kp.rank()} of {kp.size()}: initial weights {weight_hash(model)}", flush=True)
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
