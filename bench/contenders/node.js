'use strict';

// A contender: express with express-idempotency, in memory, before the same
// application.  node node.js PORT SMALL LARGE, the ports of the application.

const http = require('http');
const express = require('express');
const idempotency = require('express-idempotency');

const [port, small, large] = process.argv.slice(2).map(Number);
const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
const app = express();

app.disable('x-powered-by');
app.set('etag', false);
app.use(express.json({ limit: '1mb' }));
app.use(idempotency.idempotency());

app.post('*', (request, response) => {
    if (idempotency.getSharedIdempotencyService().isHit(request)) {
        return;
    }

    const body = JSON.stringify(request.body);
    const options = {
        agent, host: '127.0.0.1', method: 'POST', path: '/',
        port: request.path.endsWith('large') ? large : small,
        headers: { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) },
    };

    const exchange = http.request(options, (answer) => {
        const pieces = [];
        answer.on('data', (piece) => pieces.push(piece));
        answer.on('end', () => response.type('text').send(Buffer.concat(pieces).toString()));
    });

    exchange.on('error', () => response.status(502).end());
    exchange.end(body);
});

app.listen(port, '127.0.0.1');
