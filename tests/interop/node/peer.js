// A BullMQ process that a test drives line by line.
//
//   node peer.js <5|6> <redis url> <prefix>
//
// A request may name another prefix ({prefix}), so that one process serves many tests.
//
// Each line on stdin is a request {id, op, ...}; each line on stdout is its answer {id, result} or
// {id, error: {name, message, code}}, or an unsolicited {event, ...}. Anything else goes to stderr.
//
// Most operations are BullMQ's own methods, called by name:
//
//   queue.<method>  {queue, args}           any method of Queue
//   job.<method>    {queue, jobId, args}    any method of Job, on the job as it is stored now
//   flow.<method>   {args}                  any method of FlowProducer
//   worker.<method> {worker, args}          any method of Worker
//
// Those that need more than a call are listed in `operations` below.

'use strict';

const Module = require('node:module');
const readline = require('node:readline');

const [version, url, defaultPrefix] = process.argv.slice(2);
const bullmq = require(`bullmq${version}`);

const connection = connectionOptions(url);
const queues = new Map();
const workers = new Map();
const listeners = new Map();
const producers = new Map();
const held = new Map();
const boards = [];
let observing;
let counter = 0;

const operations = {
  'ping': () => ({ version: bullmq.version ?? null, pid: process.pid }),
  'queue.open': async (request) => {
    await openQueue(request, request.opts).waitUntilReady();
    return true;
  },
  'queue.getJob': async (request) => plainJob(await openQueue(request).getJob(request.jobId)),
  'queue.forget': async (request) => {
    const opened = queues.get(place(request));
    queues.delete(place(request));
    if (opened) await opened.close();
  },
  'job.waitUntilFinished': async (request) => {
    const job = await storedJob(request);
    return job.waitUntilFinished(await listen(request), request.ttl);
  },
  'job.addAndWait': async (request) => {
    const events = await listen(request);
    const job = await openQueue(request).add(...request.args);
    return tellingWhenItAsked(job).waitUntilFinished(events, request.ttl);
  },
  'worker.start': startWorker,
  'worker.seen': ({ worker }) => workers.get(worker).seen,
  'worker.close': async ({ worker, force }) => {
    const { instance } = workers.get(worker);
    workers.delete(worker);
    await instance.close(Boolean(force));
  },
  'worker.settleEach': settleEach,
  'worker.release': ({ jobId, value }) => release(jobId, value),
  'events.start': async (request) => {
    await listen(request);
    return true;
  },
  'events.list': (request) => listeners.get(place(request)).recorded,
  'events.clear': (request) => {
    listeners.get(place(request)).recorded.length = 0;
  },
  'events.close': async (request) => {
    const { instance } = listeners.get(place(request));
    listeners.delete(place(request));
    await instance.close();
  },
  'events.publish': async ({ queue, prefix, args }) => {
    const producer = new bullmq.QueueEventsProducer(queue, { connection, prefix });
    await producer.publishEvent(...args);
    await producer.close();
  },
  // Every case is [pattern, time zone, ms]; the answers are times in ms, or null for a refusal.
  'cron.next': ({ cases }) => cases.map(nextTime),
  'board.start': startBoard,
  'telemetry.add': addInTrace,
  'telemetry.spans': ({ traceId }) => {
    const spans = tracing().exporter.getFinishedSpans();
    return spans.map(plainSpan).filter((span) => span.traceId === traceId);
  },
  'prefix.close': ({ prefix }) => closeUnder(prefix),
  'stop': closeEverything,
};

const targets = {
  queue: (request) => openQueue(request),
  job: (request) => storedJob(request),
  worker: (request) => workers.get(request.worker).instance,
  flow: ({ prefix }) => openFlowProducer(prefix),
};

async function perform(request) {
  const operation = operations[request.op];
  if (operation) return operation(request);

  const [kind, method] = request.op.split('.');
  if (!targets[kind]) throw new Error(`no operation ${request.op}`);
  const target = await targets[kind](request);
  if (typeof target[method] !== 'function') {
    if (method in target) return target[method];
    throw new Error(`${kind} has no method ${method} in BullMQ ${version}`);
  }
  return target[method](...(request.args ?? []));
}

function place({ prefix, queue }) {
  return `${prefix}:${queue}`;
}

function openQueue(request, opts = {}) {
  const key = place(request);
  if (!queues.has(key)) {
    const { prefix } = request;
    const queue = new bullmq.Queue(request.queue, { connection, prefix, ...withTelemetry(opts) });
    queue.on('error', (error) => console.error('queue', key, error));
    queues.set(key, queue);
  }
  return queues.get(key);
}

function openFlowProducer(prefix) {
  if (!producers.has(prefix)) {
    producers.set(prefix, new bullmq.FlowProducer({ connection, prefix }));
  }
  return producers.get(prefix);
}

async function storedJob(request) {
  const job = await openQueue(request).getJob(request.jobId);
  if (!job) throw new Error(`no job ${request.jobId} in queue ${request.queue}`);
  return job;
}

// The job, saying 'asked' when BullMQ has asked whether it is finished: from then on only an event
// can tell.
function tellingWhenItAsked(job) {
  const part = version === '5' ? 'scripts' : 'backend';
  const isFinished = async (...args) => {
    const answer = await job[part].isFinished(...args);
    notify('asked', { jobId: job.id });
    return answer;
  };
  const asking = Object.create(job[part], { isFinished: { value: isFinished } });
  return Object.create(job, { [part]: { value: asking } });
}

async function listen(request) {
  const { queue: name, prefix, opts = {} } = request;
  const key = place(request);
  if (!listeners.has(key)) {
    const instance = new bullmq.QueueEvents(name, { connection, prefix, ...opts });
    const recorded = [];
    const emit = instance.emit.bind(instance);
    // Every name arrives here, stock or not; `<event>:<job id>` repeats what came before it.
    instance.emit = (event, ...args) => {
      const [fields, id] = args;
      const streamed = typeof id === 'string' ? id : event === 'drained' ? fields : undefined;
      const repeated = fields?.jobId !== undefined && event.endsWith(`:${fields.jobId}`);
      if (event === 'error') recorded.push({ event, message: String(fields?.message) });
      else if (streamed && !repeated) {
        recorded.push({ event, id: streamed, ...(typeof fields === 'object' ? fields : {}) });
      }
      return emit(event, ...args);
    };
    instance.on('error', () => {});
    listeners.set(key, { instance, recorded });
    await instance.waitUntilReady();
    // QueueEvents asks for its place with the first blocking read; a test must not add before it.
    if (opts.lastEventId === undefined) await untilReading(request);
  }
  return listeners.get(key).instance;
}

async function untilReading(request) {
  const { queue: name, prefix } = request;
  const wanted = `name=${prefix}:${Buffer.from(name).toString('base64')}:qe`;
  for (let tries = 0; tries < 500; tries++) {
    const clients = String(await observer().client('LIST'));
    const reading = clients
      .split('\n')
      .some((line) => line.includes(`${wanted} `) && line.includes('cmd=xread') && /flags=\S*b/.test(line));
    if (reading) return;
    await sleep(5);
  }
  throw new Error(`QueueEvents of ${name} never began to read`);
}

function observer() {
  return (observing ??= new (require('ioredis').Redis)(connection));
}

// ---- workers ----

async function startWorker({ queue, prefix, behaviours = {}, opts = {} }) {
  const id = `worker${++counter}`;
  const seen = [];
  let instance;
  const processor = (job, token) => {
    seen.push({ ...plainJob(job), at: Date.now() });
    notify('took', { worker: id, queue, jobId: job.id, name: job.name, attemptsMade: job.attemptsMade });
    return behave(behaviours[job.name] ?? behaviours['*'] ?? [['echo']], job, token, instance);
  };
  const options = { connection, prefix, autorun: false, ...withTelemetry(opts) };
  instance = new bullmq.Worker(queue, processor, options);
  workers.set(id, { instance, seen, prefix });
  for (const name of ['completed', 'failed', 'stalled', 'error', 'drained', 'lockRenewalFailed']) {
    instance.on(name, (first, second) => {
      const jobId = typeof first === 'string' ? first : first?.id;
      const message = [first, second].find((value) => value instanceof Error)?.message;
      notify(`worker:${name}`, { worker: id, queue, jobId, message });
    });
  }
  await instance.waitUntilReady();
  instance.run().catch((error) => console.error('worker', id, error));
  return id;
}

// Take the next job of each queue and end the attempt; the answers are null, or why BullMQ could not.
async function settleEach({ prefix, names, outcome, log }) {
  const settle = async (queue) => {
    const worker = new bullmq.Worker(queue, null, { connection: observer(), prefix, autorun: false });
    worker.on('error', () => {});
    try {
      const job = await worker.getNextJob('hand', { block: false });
      for (const row of log ?? []) await job.log(row);
      if (outcome === 'fail') await job.moveToFailed(new Error('no'), 'hand', false);
      else await job.moveToCompleted(null, 'hand', false);
      return null;
    } catch (error) {
      return String(error.message);
    } finally {
      await worker.close(true);
    }
  };
  return Promise.all(names.map(settle));
}

class Ended {
  constructor(value) {
    this.value = value;
  }
}

// A behaviour is a list of actions; the first that returns or throws ends the attempt.
const actions = {
  echo: (context) => new Ended(context.job.data),
  return: (_, value) => new Ended(value),
  fail: (_, message) => {
    throw new Error(message);
  },
  fail_until: ({ job }, attemptsMade, message) => {
    if (job.attemptsMade < attemptsMade) throw new Error(message);
  },
  fail_on_start: ({ job }, start, message) => {
    if (job.attemptsStarted === start) throw new Error(message);
  },
  unrecoverable: (_, message) => {
    throw new bullmq.UnrecoverableError(message);
  },
  sleep: (_, ms) => sleep(ms),
  progress: ({ job }, value) => job.updateProgress(value),
  log: ({ job }, row) => job.log(row),
  update_data: ({ job }, data) => job.updateData(data),
  hang: async ({ job }) => new Ended(await new Promise((resolve) => hold(job.id, resolve))),
  hang_on_start: async ({ job }, start) => {
    if (job.attemptsStarted === start) await new Promise((resolve) => hold(job.id, resolve));
  },
  delay_once: async ({ job, token }, ms) => {
    if (job.attemptsStarted > 1) return;
    await job.moveToDelayed(Date.now() + ms, token);
    throw new bullmq.DelayedError();
  },
  wait_once: async ({ job, token }) => {
    if (job.attemptsStarted > 1) return;
    await job.moveToWait(token);
    throw new bullmq.WaitingError();
  },
  children_values: async ({ job }) => new Ended(Object.values(await job.getChildrenValues()).sort()),
  add_children_once: async ({ job, token }, queue, ...data) => {
    if (job.attemptsStarted > 1) return;
    const parent = { id: job.id, queue: job.queueQualifiedName };
    const children = openQueue({ queue, prefix: job.prefix });
    for (const item of data) await children.add('child', item, { parent });
    if (await job.moveToWaitingChildren(token)) throw new bullmq.WaitingChildrenError();
  },
  rate_limit_once: async ({ job, worker }, ms) => {
    if (job.attemptsStarted > 1) return;
    await worker.rateLimit(ms);
    throw bullmq.Worker.RateLimitError();
  },
};

async function behave(behaviour, job, token, worker) {
  for (const [action, ...args] of behaviour) {
    if (!actions[action]) throw new Error(`no action ${action}`);
    const ended = await actions[action]({ job, token, worker }, ...args);
    if (ended instanceof Ended) return ended.value;
  }
}

function hold(jobId, resolve) {
  held.set(jobId, resolve);
  notify('holding', { jobId });
}

function release(jobId, value) {
  const chosen = jobId === undefined ? [...held.keys()] : [jobId];
  for (const id of chosen) {
    held.get(id)?.(value);
    held.delete(id);
  }
  return chosen.length;
}

// ---- cron-parser, as this BullMQ uses it ----

function nextTime([pattern, tz, ms]) {
  const home = { paths: [require.resolve(`bullmq${version}`)] };
  const parser = require(require.resolve('cron-parser', home));
  const parse = parser.CronExpressionParser?.parse ?? parser.parseExpression;
  try {
    return parse(pattern, { currentDate: new Date(ms), tz }).next().getTime();
  } catch {
    return null;
  }
}

// ---- OpenTelemetry, by BullMQ's own package: `telemetry: true` in the options of a queue or worker ----

let traced;

function tracing() {
  if (!traced) {
    const sdk = require('@opentelemetry/sdk-trace-node');
    const exporter = new sdk.InMemorySpanExporter();
    const provider = new sdk.NodeTracerProvider({
      spanProcessors: [new sdk.SimpleSpanProcessor(exporter)],
    });
    provider.register();
    const { BullMQOtel } = require(`bullmq-otel${version}`);
    traced = { exporter, tracer: provider.getTracer('test'), telemetry: new BullMQOtel('toril-test') };
  }
  return traced;
}

function withTelemetry(opts) {
  return opts.telemetry ? { ...opts, telemetry: tracing().telemetry } : opts;
}

async function addInTrace(request) {
  const queue = openQueue(request, { telemetry: true });
  return tracing().tracer.startActiveSpan('request', async (span) => {
    try {
      const job = await queue.add(...request.args);
      return { jobId: job.id, ...span.spanContext() };
    } finally {
      span.end();
    }
  });
}

function plainSpan(span) {
  const { traceId, spanId } = span.spanContext();
  const parentId = span.parentSpanContext?.spanId ?? null;
  return { name: span.name, kind: span.kind, traceId, spanId, parentId };
}

// ---- bull-board ----

// bull-board asks for plain `bullmq`; give it the version under test.
const resolveFilename = Module._resolveFilename;
Module._resolveFilename = function (request, ...rest) {
  return resolveFilename.call(this, request.replace(/^bullmq(?=$|\/)/, `bullmq${version}`), ...rest);
};

async function startBoard({ names, prefix }) {
  const express = require('express');
  const { createBullBoard } = require('@bull-board/api');
  const { BullMQAdapter } = require('@bull-board/api/bullMQAdapter');
  const { ExpressAdapter } = require('@bull-board/express');

  const adapter = new ExpressAdapter();
  adapter.setBasePath('/');
  const adapters = names.map((name) => new BullMQAdapter(openQueue({ queue: name, prefix })));
  createBullBoard({ queues: adapters, serverAdapter: adapter });
  const app = express();
  app.use('/', adapter.getRouter());
  const server = await new Promise((resolve) => {
    const listening = app.listen(0, '127.0.0.1', () => resolve(listening));
  });
  boards.push(server);
  return { port: server.address().port };
}

// ---- plumbing ----

async function closeEverything() {
  const prefixes = new Set([
    ...[...workers.values()].map(({ prefix }) => prefix),
    ...[...listeners.keys(), ...queues.keys()].map((key) => key.slice(0, key.lastIndexOf(':'))),
    ...producers.keys(),
  ]);
  await Promise.allSettled([...prefixes].map(closeUnder));
  observing?.disconnect();
  observing = undefined;
  return true;
}

// What one test opened, so that the next finds nobody working.
async function closeUnder(prefix) {
  release();
  const mine = (map, isMine) => {
    const found = [...map].filter(isMine);
    for (const [key] of found) map.delete(key);
    return found.map(([, value]) => value.instance ?? value);
  };
  const closing = [
    ...mine(workers, ([, worker]) => worker.prefix === prefix).map((worker) => worker.close(true)),
    ...mine(listeners, ([key]) => key.startsWith(`${prefix}:`)).map((events) => events.close()),
    ...mine(queues, ([key]) => key.startsWith(`${prefix}:`)).map((queue) => queue.close()),
    ...mine(producers, ([key]) => key === prefix).map((producer) => producer.close()),
  ];
  await Promise.allSettled(closing);
  for (const server of boards.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
  return closing.length;
}

function connectionOptions(text) {
  if (text.startsWith('unix:')) return { path: text.replace(/^unix:(\/\/)?/, ''), ...patient() };
  const parsed = new URL(text);
  return {
    host: parsed.hostname,
    port: Number(parsed.port || 6379),
    db: Number(parsed.pathname.slice(1) || 0),
    ...(parsed.password ? { password: decodeURIComponent(parsed.password) } : {}),
    ...patient(),
  };
}

function patient() {
  return { maxRetriesPerRequest: null };
}

function plainJob(job) {
  if (!job) return null;
  const fields = [
    'id', 'name', 'data', 'opts', 'timestamp', 'delay', 'priority', 'progress', 'returnvalue',
    'failedReason', 'stacktrace', 'attemptsMade', 'attemptsStarted', 'stalledCounter', 'processedOn',
    'processedBy', 'finishedOn', 'parentKey', 'parent', 'deduplicationId', 'repeatJobKey',
    'deferredFailure', 'queueName',
  ];
  return Object.fromEntries(fields.map((field) => [field, job[field] ?? null]));
}

function plain(value) {
  if (value === undefined || typeof value === 'function') return null;
  if (value instanceof bullmq.Job) return plainJob(value);
  if (value instanceof Map) return plain(Object.fromEntries(value));
  if (Array.isArray(value) || value instanceof Set) return [...value].map(plain);
  if (value && typeof value === 'object') {
    if (value.job instanceof bullmq.Job) {
      return { job: plainJob(value.job), children: (value.children ?? []).map(plain) };
    }
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
  }
  return value;
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function send(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

function notify(event, fields) {
  send({ event, ...fields });
}

async function answer(line) {
  const request = { prefix: defaultPrefix, ...JSON.parse(line) };
  try {
    send({ id: request.id, result: plain(await perform(request)) });
  } catch (error) {
    send({
      id: request.id,
      error: { name: error?.name, message: String(error?.message ?? error), code: error?.code ?? null },
    });
  }
}

process.on('unhandledRejection', (error) => console.error('unhandled rejection', error));

const input = readline.createInterface({ input: process.stdin, crlfDelay: Infinity });
input.on('line', answer);
input.on('close', async () => {
  await Promise.race([closeEverything(), sleep(3000)]);
  process.exit(0);
});
notify('ready', { version, pid: process.pid });
