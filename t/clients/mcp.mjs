// The client and the server of the MCP SDK with conf/agents.conf between them.
// The server counts what it executes.

import http from 'node:http';
import { randomUUID } from 'node:crypto';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

let executions = 0;

function newServer() {
    const server = new McpServer({ name: 'shop', version: '1.0.0' });
    server.registerTool('pay', {
        description: 'Pays.',
        inputSchema: { amount: z.number(), idempotencyKey: z.string().optional() },
    }, async ({ amount }) => {
        executions++;
        return { content: [{ type: 'text', text: `paid ${amount}, number ${executions}` }] };
    });
    return server;
}

// One transport for each session; JSON or event streams, as the path says.
const sessions = new Map();
const listener = http.createServer(async (request, response) => {
    let transport = sessions.get(request.headers['mcp-session-id']);
    if (!transport) {
        transport = new StreamableHTTPServerTransport({
            sessionIdGenerator: () => randomUUID(),
            enableJsonResponse: request.url.endsWith('json'),
            onsessioninitialized: (id) => sessions.set(id, transport),
        });
        await newServer().connect(transport);
    }
    await transport.handleRequest(request, response);
});
await new Promise((up) => listener.listen(process.env.SERVER_PORT, '127.0.0.1', up));

async function tell(what, call) {
    try {
        const { content } = await call;
        console.log(what, content[0].text);
    } catch (error) {
        console.log(what, error.constructor.name, error.code, /key_reused/.test(error.message));
    }
}

for (const path of ['/mcp/json', '/mcp/stream']) {
    const base = `http://127.0.0.1:${process.env.CLIENT_PORT}${path}`;
    const replays = [];
    const fetchAndLook = async (...request) => {
        const response = await fetch(...request);
        replays.push(response.headers.get('idempotency-replay'));
        return response;
    };
    const client = new Client({ name: 'agent', version: '1.0.0' });
    await client.connect(new StreamableHTTPClientTransport(new URL(base), { fetch: fetchAndLook }));
    const pay = (args) => client.callTool({ name: 'pay', arguments: args });

    await tell(`${path} first:`, pay({ amount: 5, idempotencyKey: path }));
    await tell(`${path} again:`, pay({ amount: 5, idempotencyKey: path }));
    await tell(`${path} without a key:`, pay({ amount: 5 }));
    await tell(`${path} other amount:`, pay({ amount: 6, idempotencyKey: path }));
    console.log(`${path} replays:`, replays.filter((value) => value === 'true').length);
    await client.close();
}
console.log('executions:', executions);
process.exit(0);    // connections may be open yet
