-- A contender: records in Redis, with the sockets of the Lua module and a pool
-- of connections.  Debian has no Lua library for Redis, so the protocol is here.

local redis = {}


local function command(socket, ...)
    local words = {...}
    local out = {"*", #words, "\r\n"}

    for _, word in ipairs(words) do
        word = tostring(word)
        out[#out + 1] = "$" .. #word .. "\r\n" .. word .. "\r\n"
    end

    assert(socket:send(out))

    local line = assert(socket:receive())
    local kind, rest = line:sub(1, 1), line:sub(2)

    if kind == "-" then
        error(rest)
    end

    if kind ~= "$" then
        return rest
    end

    if rest == "-1" then
        return nil
    end

    local value = assert(socket:receive(tonumber(rest)))
    assert(socket:receive(2))
    return value
end


local function send(body)
    ngx.header["Content-Type"] = "text/plain"
    ngx.header["Content-Length"] = #body
    ngx.print(body)
end


function redis.answer(port, ttl, application)
    ngx.req.read_body()

    local name = ngx.var.http_idempotency_key .. ngx.var.uri
    local print = ngx.md5(ngx.req.get_body_data() or "")
    local socket = ngx.socket.tcp()

    assert(socket:connect("127.0.0.1", port))

    local kept = command(socket, "SET", name, "p" .. print, "NX", "GET", "EX",
        ttl)

    if not kept then
        local answer = ngx.location.capture(application,
            {method = ngx.HTTP_POST, always_forward_body = true})

        command(socket, "SET", name, "c" .. print .. answer.body, "EX", ttl)
        socket:setkeepalive()
        return send(answer.body)
    end

    socket:setkeepalive()

    if kept:sub(1, 1) == "p" then
        return ngx.exit(409)
    end

    if kept:sub(2, 33) ~= print then
        return ngx.exit(422)
    end

    return send(kept:sub(34))
end


return redis
