//! Arguments of `serve`.

use super::batch::size;
use super::{AssumeArg, DTypeArg, KvArg, ModelArgs, SchedulerArgs};
use clap::{Args, ValueEnum};
use pellucid_server::Alias;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args)]
#[command(
    after_help = "The OpenAI clients work unchanged; every request may also capture and change activations:\n\n  \
  pellucid serve --model smollm2-135m --alias gpt-4o-mini\n  \
  curl http://127.0.0.1:7117/v1/completions -H 'Content-Type: application/json' \\\n       \
  -d '{\"prompt\": \"One day,\", \"max_tokens\": 20, \"capture\": [\"layers.*.resid_post\"]}'\n\n  \
  from openai import OpenAI\n  \
  client = OpenAI(base_url=\"http://127.0.0.1:7117/v1\", api_key=\"none\")\n\n\
Several models are listed at once, and each is loaded by the first request that names it; requests choose LoRA \
adapters by name:\n\n  \
pellucid serve --model a --model b --model-memory 8G --adapter a:german=lora/german\n  \
curl http://127.0.0.1:7117/v1/completions -H 'Content-Type: application/json' \\\n       \
-d '{\"model\": \"a\", \"adapter\": \"german\", \"prompt\": \"Guten\"}'\n\n\
The first line on stdout is the base URL. GET /openapi.json describes all routes and fields, docs/serving.md explains \
them. PELLUCID_LOG sets the log level (error, warn, info, debug). Ctrl-C or SIGTERM finishes running requests; a second \
one ends at once."
)]
pub struct ServeArgs {
    /// Model directory, GGUF file, Hugging Face id or pulled name; may be repeated. The first one
    /// is loaded at the start, the others by the first request that names them [default: the
    /// built-in model]
    #[arg(long, short, value_name = "M")]
    pub model: Vec<String>,
    /// Load no model at the start, but each one with the first request that names it
    #[arg(long)]
    pub no_preload: bool,
    /// Memory for the weights of all models, such as 8G. A model that does not fit waits until idle
    /// ones are unloaded, least recently used first [default: what the process may take]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub model_memory: Option<usize>,
    /// LoRA adapter (a PEFT directory) of MODEL, by default of the first one. Requests choose it by
    /// `"adapter": "NAME"` or by the model name MODEL:NAME, each its own; may be repeated
    #[arg(long, value_name = "[MODEL:]NAME=DIR")]
    pub adapter: Vec<ServedAdapter>,
    /// Address to listen on; port 0 takes a free one. Any address but loopback needs --token-file
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7117")]
    pub addr: SocketAddr,
    /// File with the bearer token that requests must have, at least 16 characters
    #[arg(long, value_name = "F")]
    pub token_file: Option<PathBuf>,
    /// Another name under which requests find MODEL (by default the first one); may be repeated
    #[arg(long, value_name = "NAME[=MODEL]")]
    pub alias: Vec<Alias>,
    /// Host name by which clients reach the server, besides localhost; may be repeated
    #[arg(long, value_name = "HOST")]
    pub allow_host: Vec<String>,
    /// Jinja chat template to use instead of the models' own
    #[arg(long, value_name = "F.jinja")]
    pub chat_template: Option<PathBuf>,
    /// Attach a sparse autoencoder to every model; may be repeated
    #[arg(long, value_name = "PATH[@SITE]")]
    pub sae: Vec<String>,
    #[command(flatten)]
    pub assume: AssumeArg,
    /// In-memory dtype of the weights
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: DTypeArg,
    /// KV cache dtype; bf16 halves its memory and rounds keys and values
    #[arg(long, value_enum, default_value = "f32")]
    pub kv_dtype: KvArg,
    /// Number of threads [default: PELLUCID_THREADS, RAYON_NUM_THREADS, OMP_NUM_THREADS or all
    /// cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    pub log: LogArg,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten, next_help_heading = "Limits of the scheduler")]
    pub scheduler: SchedulerArgs,
}

/// `[MODEL:]NAME=DIR`: an adapter that requests choose by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedAdapter {
    /// The id of its model; the first one if `None`.
    pub model: Option<String>,
    pub name: String,
    pub directory: PathBuf,
}

impl FromStr for ServedAdapter {
    type Err = String;

    fn from_str(text: &str) -> Result<ServedAdapter, String> {
        let (name, directory) = text.split_once('=').ok_or("an adapter is [MODEL:]NAME=DIR")?;
        let (model, name) = match name.rsplit_once(':') {
            Some((model, name)) => (Some(model.to_owned()), name),
            None => (None, name),
        };
        match name.is_empty() || directory.is_empty() || model.as_deref() == Some("") {
            true => Err("an adapter is [MODEL:]NAME=DIR".into()),
            false => Ok(ServedAdapter { model, name: name.into(), directory: directory.into() }),
        }
    }
}

/// Limits of requests.
#[derive(Args)]
#[command(next_help_heading = "Limits of requests")]
pub struct LimitArgs {
    /// Most new tokens of a choice [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// Most bytes of a request's body [default: 32M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub body_bytes: Option<usize>,
    /// Most requests that wait [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub queue: Option<u32>,
    /// Most open connections [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: Option<u32>,
    /// Memory for finished captures that wait to be fetched [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub stored_bytes: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum LogArg {
    Text,
    /// One JSON object per line
    Json,
}

impl ServeArgs {
    /// The arguments of each model.
    pub fn models(&self) -> Vec<ModelArgs> {
        let of = |model: Option<String>| ModelArgs {
            model: model.map(Into::into),
            adapter: Vec::new(),
            use_adapter: None,
            sae: self.sae.clone(),
            unchecked: false,
            assume: self.assume.clone(),
            dtype: self.dtype,
            kv_dtype: self.kv_dtype,
            threads: self.threads,
        };
        match self.model.is_empty() {
            true => vec![of(None)],
            false => self.model.iter().map(|model| of(Some(model.clone()))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_names_its_model_and_its_directory() {
        let parse = |text: &str| text.parse::<ServedAdapter>();
        let adapter = |model: Option<&str>, name: &str, directory: &str| ServedAdapter {
            model: model.map(str::to_owned),
            name: name.into(),
            directory: directory.into(),
        };
        assert_eq!(parse("german=lora/a"), Ok(adapter(None, "german", "lora/a")));
        assert_eq!(parse("org/base:german=lora/lr=2"), Ok(adapter(Some("org/base"), "german", "lora/lr=2")));
        for wrong in ["lora/a", "=lora", "german=", ":german=lora", "base:=lora"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
