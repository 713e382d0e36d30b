-- What benchmarks/runs/wrk.py has wrk send and print: -- BODY_FILE CONTENT_TYPE
function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  wrk.headers["Content-Type"] = args[2]
  file:close()
end

-- Latencies, each with how often it was, and the duration are in microseconds.
function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.status + errors.connect + errors.read + errors.write + errors.timeout
  local counts = {}
  for place = 1, #latency do
    counts[place] = string.format("[%d, %d]", latency(place))
  end
  io.write(string.format(
    '\n{"requests": %d, "microseconds": %d, "failed": %d, "latencies": [%s]}\n',
    summary.requests, summary.duration, failed, table.concat(counts, ", ")
  ))
end
