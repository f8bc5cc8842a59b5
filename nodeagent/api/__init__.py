"""The HTTP interface: routes, authorisation, problem documents and OpenAPI, on a unix socket."""
