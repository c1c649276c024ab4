# The search service: docker build -t autojacobin . && export AUTOJACOBIN_TOKEN="$(openssl rand -hex 32)" && \
#     docker run --rm -p 127.0.0.1:8571:8571 -v ./my-index:/index:ro -e AUTOJACOBIN_TOKEN autojacobin
# docs/service.md says more; deploy/compose.yml puts it behind nginx.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++
COPY . /source
# The image may run on another CPU than the one that builds it.
ENV AUTOJACOBIN_LEVELS=all
RUN python -m venv /opt/autojacobin \
    && /opt/autojacobin/bin/pip install --no-cache-dir '/source[payload,web]'

FROM python:${PYTHON}-slim
COPY --from=build /opt/autojacobin /opt/autojacobin
RUN useradd --system --uid 10001 --home-dir /var/lib/autojacobin --create-home autojacobin \
    && install --directory --owner autojacobin /var/cache/autojacobin
ENV PATH=/opt/autojacobin/bin:$PATH NUMBA_CACHE_DIR=/var/cache/autojacobin
USER autojacobin
WORKDIR /var/lib/autojacobin
# For the kind of CPU on which the image is built. On any other the service compiles once more when it starts.
RUN autojacobin warm
EXPOSE 8571
HEALTHCHECK --interval=10s --timeout=5s --start-period=3m --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8571/readyz', timeout=4)"]
ENTRYPOINT ["autojacobin"]
CMD ["serve", "/index", "--host", "0.0.0.0"]
