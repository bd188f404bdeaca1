//! Checks of every request before it is routed: Host, Origin, token.
//!
//! A page that the user visits can send requests to loopback. With DNS rebinding its Origin equals
//! the Host, so the Host must be a name of this server. Cross-site requests are refused by
//! `Sec-Fetch-Site` and `Origin`. JSON bodies are the only ones (`body.rs`), and there are no CORS
//! headers, so a page can neither send a simple request nor read an answer.

use crate::api_error::{ApiError, ApiResult};
use crate::options::ServerOptions;
use crate::state::AppState;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use subtle::ConstantTimeEq;

/// Routes that need no token, for load balancers and supervisors.
const OPEN_ROUTES: [&str; 2] = ["/health", "/ready"];

/// The middleware.
pub async fn check(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let is_open = OPEN_ROUTES.contains(&request.uri().path());
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let checked = check_host(&state.options, authority.as_deref(), request.headers())
        .and_then(|()| check_origin(&state.options, request.headers()))
        .and_then(|()| if is_open { Ok(()) } else { check_token(&state.options, request.headers()) });
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn check_host(options: &ServerOptions, authority: Option<&str>, headers: &HeaderMap) -> ApiResult<()> {
    let refused = |what: &str| {
        let message = format!("{what}; name the server as localhost or by its address, or start it with --allow-host");
        Err(ApiError::new(StatusCode::FORBIDDEN, message).with_code("host_not_allowed"))
    };
    let mut hosts = headers.get_all(HOST).iter();
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return refused("the request has two Host headers");
    }
    let Some(host) = first.and_then(|host| host.to_str().ok()).filter(|host| !host.is_empty()) else {
        return refused("the request has no Host header");
    };
    for name in std::iter::once(host).chain(authority) {
        if !is_own_name(options, name) {
            return refused(&format!("the Host {name:?} is not a name of this server"));
        }
    }
    Ok(())
}

/// Whether `host`, with or without a port, is a name of this server. The port is not compared: a
/// rebound page connects to the right port anyway, and a tunnel may use another one.
fn is_own_name(options: &ServerOptions, host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || is_port(port) => address,
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if is_port(&format!(":{port}")) => name,
            Some(_) => return false,
            None => host,
        },
    };
    if name.eq_ignore_ascii_case("localhost") || options.allowed_hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    {
        return true;
    }
    // An address in the Host header cannot be rebound.
    let listening = options.address.ip();
    name.parse::<IpAddr>().is_ok_and(|address| {
        address.is_loopback() || address == listening || listening.is_unspecified() && !address.is_unspecified()
    })
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

fn check_origin(options: &ServerOptions, headers: &HeaderMap) -> ApiResult<()> {
    let refused = |what: String| {
        let message = format!("{what}: requests from web pages of other sites are refused");
        Err(ApiError::new(StatusCode::FORBIDDEN, message).with_code("cross_site"))
    };
    if let Some(site) = headers.get("sec-fetch-site") {
        let site = site.to_str().unwrap_or("unreadable");
        if !matches!(site, "same-origin" | "none") {
            return refused(format!("Sec-Fetch-Site is {site}"));
        }
    }
    if let Some(origin) = headers.get(ORIGIN) {
        let origin = origin.to_str().unwrap_or("unreadable");
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let own = headers.get(HOST).and_then(|own| own.to_str().ok());
        if !host.is_some_and(|host| Some(host) == own && is_own_name(options, host)) {
            return refused(format!("the Origin is {origin:?}"));
        }
    }
    Ok(())
}

fn check_token(options: &ServerOptions, headers: &HeaderMap) -> ApiResult<()> {
    let Some(token) = &options.token else { return Ok(()) };
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let message = match given {
        Some(given) if bool::from(given.as_bytes().ct_eq(token.as_bytes())) => return Ok(()),
        Some(_) => "the token is wrong",
        None => "this server needs a token: send `Authorization: Bearer TOKEN`",
    };
    Err(ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_are_hosts() {
        let mut options = ServerOptions { allowed_hosts: vec!["lab.example".into()], ..ServerOptions::default() };
        let good = ["localhost", "LOCALHOST:1", "127.0.0.1:7117", "127.0.0.2", "[::1]:7117", "[::1]", "lab.example:80"];
        for host in good {
            assert!(is_own_name(&options, host), "{host}");
        }
        let bad =
            ["", ":80", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:x", "[::1"];
        for host in bad.into_iter().chain(["0.0.0.0", "10.0.0.1", "localhost:80:80", "[::1]x", "127.0.0.1:99999"]) {
            assert!(!is_own_name(&options, host), "{host}");
        }
        options.address = ([10, 0, 0, 1], 80).into();
        assert!(is_own_name(&options, "10.0.0.1:80") && !is_own_name(&options, "10.0.0.2"));
        options.address = ([0, 0, 0, 0], 80).into();
        assert!(is_own_name(&options, "10.0.0.2") && !is_own_name(&options, "evil.example"));
    }
}
