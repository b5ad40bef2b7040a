# A gateway replica: `greenroom serve`. Two stages, so that what builds the venv is not in the image that runs.
FROM python:3.12-slim AS build
# What your agent needs beyond Greenroom: --build-arg PACKAGES="openai".
ARG PACKAGES=""
RUN python -m venv /venv
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY coordinator coordinator
COPY workers workers
COPY lua lua
RUN /venv/bin/pip install --no-cache-dir --disable-pip-version-check ".[gateway]" $PACKAGES

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin greenroom
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GREENROOM_HOST=0.0.0.0 \
    GREENROOM_PORT=8000 \
    GREENROOM_AGENT=workers.gateway.echo:build
# Modules of your own that GREENROOM_AGENT names are looked for here.
WORKDIR /app
USER 10001
EXPOSE 8000
CMD ["greenroom", "serve"]
