-- Calls job_submit.lua for its tests. Arguments: the module, its field. Each line of stdin is one call: the
-- function's name and two tables, as words NAME=VALUE in hexadecimal, "-" between the tables; a value begins
-- with "s" (text), "n" (number) or "e" (a text of the batch job's environment). Answers are lines likewise.

local gpulease = dofile(arg[1])
gpulease.field = arg[2]

local function plain(hexadecimal)
    return (string.gsub(hexadecimal, "..", function(pair) return string.char(tonumber(pair, 16)) end))
end

local function hexadecimal(text)
    return (string.gsub(text, ".", function(char) return string.format("%02x", string.byte(char)) end))
end

local function put(into, name, value)
    local kind, rest = string.sub(value, 1, 1), string.sub(value, 2)
    if kind == "e" then
        into.script, into.environment = "#!/bin/sh", into.environment or {}
        into.environment[name] = rest
    else
        into[name] = kind == "n" and tonumber(rest) or rest
    end
end

for line in io.lines() do
    local words = string.gmatch(line, "%S+")
    local call, tables = words(), { {} }
    for word in words do
        if word == "-" then
            tables[#tables + 1] = {}
        else
            local name, value = string.match(word, "^(%x+)=(%x+)$")
            put(tables[#tables], plain(name), plain(value))
        end
    end
    local ran, why = pcall(gpulease[call], tables[1], tables[2])
    local answer = { hexadecimal((ran and "" or "failed: ") .. (why or "")) .. "." }
    for _, name in ipairs({ "extra", "comment" }) do
        local text = tables[1][name]
        answer[#answer + 1] = text and hexadecimal(text) .. "." or "-"
    end
    io.write(table.concat(answer, " "), "\n")
    io.flush()
end
