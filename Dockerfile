# keras-par with Horovod: `docker build -t keras-par .` in a clone; docs/clusters/kubernetes.md starts it in Pods.
FROM python:3.11-slim-bookworm

# The compiler stays: sums through shared memory are compiled for the processor that they run on. OpenSSH joins Pods.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 trainer \
    && install --directory --owner trainer /opt/keras-par /workspace
COPY examples/kubernetes/ssh_config /etc/ssh/ssh_config.d/keras-par.conf
COPY examples/kubernetes/sshd_config /etc/keras-par/sshd_config

USER 1000
WORKDIR /workspace
ENV PATH=/opt/keras-par/bin:$PATH

# With GPUs: --build-arg TENSORFLOW='tensorflow[and-cuda]' --build-arg HOROVOD_OPTIONS=--gpu
ARG TENSORFLOW=tensorflow
ARG HOROVOD_OPTIONS=""
COPY --chown=1000 . /tmp/keras-par
# hadolint ignore=DL3013
RUN python -m venv /opt/keras-par \
    && pip install --no-cache-dir "/tmp/keras-par[horovod]" "$TENSORFLOW" \
    && keras-par install-horovod $HOROVOD_OPTIONS \
    && rm -rf /tmp/keras-par
COPY --chown=1000 examples/kubernetes/train.py .
CMD ["keras-par", "doctor"]
