// Azure's client for rooms, which sends the Repeatability headers by itself,
// against conf/repeatability.conf.  Its first connection breaks while the
// request runs; the client repeats the request, which may be too early once.

import net from 'node:net';
import { RoomsClient } from '@azure/communication-rooms';

// Hands bytes on to nginx, and breaks the first connection after half a second.
let connections = 0;
const relay = net.createServer((socket) => {
    const nginx = net.connect(process.env.CLIENT_PORT, '127.0.0.1');
    socket.on('error', () => nginx.destroy());
    nginx.on('error', () => socket.destroy());
    socket.pipe(nginx).pipe(socket);
    if (++connections === 1) {
        setTimeout(() => {
            socket.resetAndDestroy();
            nginx.destroy();
        }, 500);
    }
});
await new Promise((up) => relay.listen(0, '127.0.0.1', up));

const client = new RoomsClient(`http://127.0.0.1:${relay.address().port}`, { key: 'c2VjcmV0' }, {
    allowInsecureConnection: true,
    retryOptions: { maxRetries: 5, retryDelayInMs: 2000 },
});

const seen = [];
client.client.pipeline.addPolicy({
    name: 'look',
    async sendRequest(request, next) {
        seen.push(['repeatability-request-id', 'repeatability-first-sent']
            .map((name) => request.headers.get(name)).join(' '));
        try {
            return await next(request);
        } catch (error) {
            console.log('lost:', error.code);
            throw error;
        }
    },
}, { afterPhase: 'Retry' });

const results = [];
const room = await client.createRoom({
    onResponse: (response) => results.push(response.headers.get('repeatability-result')),
});
console.log('room:', room.id);
console.log('results:', results.join(', '));
console.log('one id, one time:', seen.length === 2 && new Set(seen).size === 1);
process.exit(0);    // connections may be open yet
