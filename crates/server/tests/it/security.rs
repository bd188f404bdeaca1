//! Host, Origin, tokens and addresses.

use crate::support::{TestServer, model};
use pellucid_server::{Error, ModelEntry, Server, ServerOptions};

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("")
}

#[test]
fn foreign_and_empty_hosts_are_refused() {
    let server = TestServer::shared();
    let ask = |host: &str| server.raw(format!("GET /v1/models HTTP/1.1\r\n{host}Connection: close\r\n\r\n").as_bytes());
    for host in ["Host: localhost\r\n", "Host: 127.0.0.1:9\r\n", "Host: [::1]:80\r\n"] {
        assert_eq!(status(&ask(host)), "200", "{host}");
    }
    for host in ["", "Host:\r\n", "Host: evil.example\r\n", "Host: localhost.evil.example\r\n", "Host: 10.1.2.3\r\n"] {
        let answer = ask(host);
        assert!(["403", "400"].contains(&status(&answer)), "{host}: {answer}");
    }
    assert_eq!(status(&ask("Host: localhost\r\nHost: evil.example\r\n")), "403");
    let absolute = "GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(status(&server.raw(absolute.as_bytes())), "403");
}

#[test]
fn pages_of_other_sites_are_refused() {
    let server = TestServer::shared();
    let host = server.address.to_string();
    let own = format!("http://{host}");
    let get = |headers: &[(&str, &str)]| server.send("GET", "/v1/models", headers, b"").0;
    assert_eq!(get(&[("Origin", &own), ("Sec-Fetch-Site", "same-origin")]), 200);
    assert_eq!(get(&[("Sec-Fetch-Site", "none")]), 200);
    for headers in [("Origin", "http://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site")] {
        assert_eq!(get(&[headers]), 403, "{headers:?}");
    }
    assert_eq!(get(&[("Sec-Fetch-Site", "same-site")]), 403, "another port of localhost is another origin");
    // A rebound page has an Origin that equals its Host.
    let rebound =
        "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(status(&server.raw(rebound.as_bytes())), "403");
    // A form cannot send JSON.
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(server.send("POST", "/v1/completions", &form, b"prompt=a").0, 415);
    let raw = server.raw(b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(!raw.to_ascii_lowercase().contains("access-control-allow"), "{raw}");
}

#[test]
fn a_token_is_needed_if_the_server_has_one() {
    let token = "0123456789abcdef";
    let server = TestServer::start(ServerOptions { token: Some(token.into()), ..ServerOptions::default() });
    let get = |path: &str, header: Option<String>| {
        let headers: Vec<(&str, &str)> = header.iter().map(|value| ("Authorization", value.as_str())).collect();
        server.send("GET", path, &headers, b"")
    };
    assert_eq!(get("/health", None).0, 200);
    for path in ["/v1/models", "/metrics", "/openapi.json", "/nothing"] {
        let (status, answer) = get(path, None);
        assert_eq!((status, &answer["error"]["type"]), (401, &"authentication_error".into()), "{path}");
    }
    assert_eq!(get("/v1/models", Some(format!("Bearer {token}"))).0, 200);
    for wrong in ["Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcde", "Basic 0123456789abcdef"] {
        assert_eq!(get("/v1/models", Some(wrong.into())).0, 401, "{wrong}");
    }
}

#[test]
fn another_address_than_loopback_needs_a_token() {
    let bind = |token: Option<&str>| {
        let options = ServerOptions {
            address: ([0, 0, 0, 0], 0).into(),
            token: token.map(str::to_owned),
            ..ServerOptions::default()
        };
        Server::bind(vec![ModelEntry { id: "m".into(), loaded: model() }], options)
    };
    assert!(matches!(bind(None), Err(Error::NeedsToken { .. })));
    assert!(matches!(bind(Some("short")), Err(Error::Options { .. })));
    assert!(bind(Some("0123456789abcdef")).is_ok());
}
