// GroupMQ on Node: every job belongs to a group, here one of 100, or of 10,000 for `many_lanes`;
// compare its drain with our lanes.
'use strict';

const Redis = require('ioredis');
const { Queue, Worker } = require('groupmq');
const { connection, given, main } = require('./common.js');

const GROUPS = given().measure === 'many_lanes' ? 10000 : 100;
const redis = new Redis(connection(given().url));
const queue = new Queue({ redis, namespace: 'bench', jobTimeoutMs: 30000 });
let added = 0;

main({
  add: n => queue.add({ groupId: 'g' + (added++ % GROUPS), data: { n }, orderMs: Date.now() }),
  work(concurrency, handle, settled) {
    const handler = async job => {
      handle(job.data.n);
      return 1;
    };
    const worker = new Worker({ queue, concurrency, handler });
    worker.on('completed', settled);
    worker.run();
  },
});
