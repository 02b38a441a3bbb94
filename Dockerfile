# syntax=docker/dockerfile:1
# Images of the pool's own processes. Engines have images of their own, with this package beside vLLM (docs/vllm.md).
#
#   docker build --target master    --tag moonpool-master:0.1.0 .
#   docker build --target node      --tag moonpool-node:0.1.0 .
#   docker build --target node-rdma --tag moonpool-node-rdma:0.1.0 .

FROM python:3.12-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY . .
# Without pip inside: the image needs none, the build uses its own. Versions are those that the tests ran with.
RUN python -m venv --without-pip /opt/moonpool \
    && pip --python /opt/moonpool/bin/python install --constraint constraints.txt '.[otel]'

FROM build AS build-master
RUN pip --python /opt/moonpool/bin/python install --constraint constraints.txt '.[master,otel]'

FROM build AS build-node-rdma
RUN pip --python /opt/moonpool/bin/python install --constraint constraints.txt mooncake-transfer-engine-non-cuda

FROM python:3.12-slim-bookworm AS run
RUN groupadd --gid 10001 moonpool \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin moonpool
ENV PATH=/opt/moonpool/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it isn't root.
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["moonpool"]

# The node: memory and sockets, nothing for the web.
FROM run AS node
COPY --from=build /opt/moonpool /opt/moonpool
EXPOSE 50052 50053 9101
CMD ["node", "--help"]

# The node with Mooncake's transfer engine and what its wheel loads (docs/rdma.md).
FROM run AS node-rdma
USER 0:0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ibverbs-providers libcurl4 libibverbs1 libnuma1 \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-node-rdma /opt/moonpool /opt/moonpool
EXPOSE 50052 50053 9101
CMD ["node", "--help"]

# Last, and so what `docker build .` makes: the master with etcd's client, REST and the dashboard. No torch, no vLLM.
FROM run AS master
COPY --from=build-master /opt/moonpool /opt/moonpool
EXPOSE 50051 8080
CMD ["master", "--help"]
