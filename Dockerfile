# `prota`, and by default `prota serve` for the library in /data.
#   docker build -t prota .                            CPU
#   docker build -t prota --build-arg TORCH=cu128 .    NVIDIA GPU; run it with --gpus all
FROM python:3.12-slim

# The CPU kernel is compiled at its first use.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*

# Which build of torch, as uv names it.
ARG TORCH=cpu
COPY . /src
RUN pip install --no-cache-dir uv \
 && uv pip install --system --no-cache --compile-bytecode --torch-backend "$TORCH" "/src[serve]" -c /src/constraints.txt \
 && rm -rf /src

RUN useradd --create-home prota && mkdir -p /data/library && chown prota /data/library
USER prota
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["prota"]
CMD ["serve", "--host", "0.0.0.0"]
