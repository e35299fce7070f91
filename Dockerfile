# The OpenAI-compatible server, for an engine that runs elsewhere: no torch, no GPU and no model in this image.
#
#   docker build --tag pasta-async .
#   docker run --publish 127.0.0.1:8000:8000 --env PASTA_BACKEND=http://engine:30000 \
#       --env PASTA_TOKENIZER=/model --volume /models/my-model:/model:ro \
#       --env PASTA_SERVER_API_KEYS=a-long-secret pasta-async
#
# docs/serving.md tells more; compose.yaml starts it with the engine.

FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ENV PYTHONUNBUFFERED=1
# The versions that the tests ran with.
COPY constraints.txt /install/constraints.txt
COPY --from=build /wheels /install/wheels
RUN wheel=$(ls /install/wheels/*.whl) \
    && pip install --no-cache-dir --constraint /install/constraints.txt "pasta_async[server] @ file://$wheel" \
    && rm -r /install \
    && useradd --system --uid 10001 --no-create-home pasta
USER 10001
# In a container every address is reachable from outside, so the server insists on a key.
ENV PASTA_SERVER_HOST=0.0.0.0 PASTA_SERVER_PORT=8000
# A tokenizer from the hub is kept here: the user has no home.
ENV HF_HOME=/var/tmp/huggingface
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os; from urllib.request import urlopen; urlopen('http://127.0.0.1:' + os.environ['PASTA_SERVER_PORT'] + '/health', timeout=4)"]
ENTRYPOINT ["pasta-async"]
CMD ["serve"]
