# The gateway with its Python packages, Delta's jars and a Java runtime.
# A container of this image needs no network to start.

FROM python:3.11.14-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# The Java package links manual pages into a folder that slim images leave out.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*


FROM base AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
WORKDIR /build

# Packages first: they change less often than the project.
COPY requirements.lock ./
RUN python -m venv --without-pip /opt/deltaport \
    && pip --python /opt/deltaport/bin/python install --quiet --require-hashes -r requirements.lock

# The build backend, too, comes from the lock: pip refuses whatever it would need beyond these.
COPY requirements-dev.lock ./
RUN awk '/^[a-z]/ {keep = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/} keep' \
        requirements-dev.lock > requirements-build.lock \
    && pip install --quiet --require-hashes -r requirements-build.lock

COPY pyproject.toml README.md LICENSE ./
COPY gateway ./gateway
RUN pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/deltaport/bin/python install --quiet --no-deps --no-index dist/deltaport-*.whl \
    && /opt/deltaport/bin/deltaport fetch-jars


FROM base AS run
LABEL org.opencontainers.image.title="deltaport" \
      org.opencontainers.image.description="An Arrow Flight gateway that lets DuckDB work on Delta Lake in plain SQL" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"

# Hadoop asks the system for the name of its user, so the number alone would not do.
RUN groupadd --gid 10815 deltaport \
    && useradd --uid 10815 --gid 10815 --no-create-home --home-dir /var/lib/deltaport --shell /usr/sbin/nologin deltaport \
    && install -d -o deltaport -g deltaport \
        /var/lib/deltaport /var/lib/deltaport/warehouse /var/lib/deltaport/scratch
COPY --from=build /opt/deltaport /opt/deltaport
COPY deploy/container/gateway.yaml deploy/container/access.yaml deploy/container/tokens /etc/deltaport/

# Spark spills here; the root file system may be mounted read-only, with a /tmp that allows exec:
# the JVM unpacks its native codecs there.
ENV PATH=/opt/deltaport/bin:$PATH \
    SPARK_LOCAL_DIRS=/var/lib/deltaport/scratch
USER 10815:10815
WORKDIR /var/lib/deltaport/scratch
VOLUME ["/var/lib/deltaport/warehouse", "/var/lib/deltaport/scratch"]
EXPOSE 8815 9815
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:9815/livez', timeout=4)"]
ENTRYPOINT ["deltaport"]
CMD ["serve", "--config", "/etc/deltaport/gateway.yaml"]
