"""Fits a line through four points on two ranks, in a training loop written by hand.

    keras-par run -np 2 examples/ddp_train.py

Each rank has two of the points. The gradients are averaged, so both ranks walk to w = [2, 3] together.
"""

import argparse

import tensorflow as tf

import keras_par as kp

POINTS = [
    ([[1.0, 2.0], [2.0, 3.0]], [[8.0], [13.0]]),
    ([[4.0, 6.0], [3.0, 1.0]], [[26.0], [9.0]]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="100 steps instead of 500")
    args = parser.parse_args()
    kp.init()
    if kp.size() != 2:
        raise SystemExit("examples/ddp_train.py needs 2 ranks: keras-par run -np 2 examples/ddp_train.py")
    x, y = (tf.constant(values, tf.float64) for values in POINTS[kp.rank()])
    w = tf.Variable([[0.0], [0.0]], dtype=tf.float64)
    reducer = kp.GradientReducer(mean=True)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(x @ w - y))
        [gradient] = reducer(tape.gradient(loss, [w]))
        w.assign_sub(0.01 * gradient)
        return loss

    for number in range(1, 101 if args.smoke else 501):
        loss = float(step())
        if number % 50 == 0:
            print(f"rank {kp.rank()} step {number}: loss {loss:.4e}", flush=True)
    print(f"rank {kp.rank()}: w = {w.numpy().ravel().tolist()}", flush=True)


if __name__ == "__main__":
    main()
