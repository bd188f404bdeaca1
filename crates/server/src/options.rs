//! Options of a server.

use crate::error::{Error, Result};
use pellucid_engine::SchedulerOptions;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Tokens of a pass: a new request waits for the running pass, so small ones give first tokens
/// sooner. Prompts take 10 % longer than in passes of 512.
const PASS_TOKENS: usize = 64;

/// Options of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens. An address other than loopback needs a token.
    pub address: SocketAddr,
    /// The bearer token that every request must have, except for `/health` and `/ready`.
    pub token: Option<String>,
    /// Host names of the server besides `localhost` and the addresses of loopback.
    pub allowed_hosts: Vec<String>,
    /// Other names of models, as clients write them.
    pub aliases: Vec<Alias>,
    /// Bytes for the weights of all models in memory; what the process may take if absent.
    pub model_memory: Option<usize>,
    /// Limits of requests.
    pub limits: Limits,
    /// Limits of each model's scheduler.
    pub scheduler: SchedulerOptions,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            address: (Ipv4Addr::LOCALHOST, 7117).into(),
            token: None,
            allowed_hosts: Vec::new(),
            aliases: Vec::new(),
            model_memory: None,
            limits: Limits::default(),
            scheduler: SchedulerOptions { queue: 1024, pass_tokens: PASS_TOKENS, ..SchedulerOptions::default() },
        }
    }
}

impl ServerOptions {
    /// Checks address and token.
    pub fn check(&self) -> Result<()> {
        if !self.address.ip().is_loopback() && self.token.is_none() {
            return Err(Error::NeedsToken { address: self.address });
        }
        let is_weak = |token: &str| token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic());
        if self.token.as_deref().is_some_and(is_weak) {
            return Err(Error::Options {
                problem: "the token is shorter than 16 characters, or has others than visible ASCII".into(),
                remedy: "make one with `openssl rand -hex 32 > token`".into(),
            });
        }
        Ok(())
    }
}

/// Another name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The name in requests.
    pub name: String,
    /// The model; the first one if `None`.
    pub model: Option<String>,
}

impl std::str::FromStr for Alias {
    type Err = String;

    /// Parses `NAME` or `NAME=MODEL`.
    fn from_str(text: &str) -> std::result::Result<Alias, String> {
        let (name, model) = match text.split_once('=') {
            Some((name, model)) => (name, Some(model)),
            None => (text, None),
        };
        match name.is_empty() || model.is_some_and(str::is_empty) {
            true => Err("an alias is NAME or NAME=MODEL".into()),
            false => Ok(Alias { name: name.into(), model: model.map(str::to_owned) }),
        }
    }
}

/// Limits of requests. A request beyond one of them is refused before anything runs.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// New tokens of a row, also for a chat without `max_tokens`.
    pub max_tokens: usize,
    /// Prompts of one request, each counted `n` times.
    pub rows: usize,
    /// Most likely tokens listed beside a token.
    pub logprobs: usize,
    /// Bytes of the captures of one request.
    pub capture_bytes: usize,
    /// Bytes of finished captures that wait to be fetched; the oldest are dropped.
    pub stored_bytes: usize,
    /// Open connections.
    pub connections: usize,
    /// Time for the headers of a request, and for its body.
    pub read_timeout: Duration,
    /// Time that a request for an unloaded model waits for the memory of models in use.
    pub load_wait: Duration,
    /// Time that running requests have to finish after a shutdown signal.
    pub shutdown_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 32 << 20,
            max_tokens: 4096,
            rows: 1024,
            logprobs: 100,
            capture_bytes: 1 << 30,
            stored_bytes: 1 << 30,
            connections: 1024,
            read_timeout: Duration::from_secs(30),
            load_wait: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}
