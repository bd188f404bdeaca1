//! [`RemoteModel`]: a model on a server.

use crate::address::Address;
use crate::error::{Error, Result};
use crate::http::Connection;
use pellucid_engine::plan::Expr;
use pellucid_engine::{
    Array, CaptureDtype, Control, GenerateOptions, Generation, Interrupt, NanOrigin, Plan, RowAdapters, Run,
    RunOptions, Site,
};
use pellucid_models::outline::ModelOutline;
use pellucid_models::wire::{
    ArrayFile, BranchesCall, Frame, FrameReader, GenerateCall, Hello, PROTOCOL, RunCall, WireResults, plan_for_wire,
};
use pellucid_models::{LoadedModel, StopStrings, TextPiece};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::time::Duration;

/// Environment variable with the token of a server.
pub const TOKEN_VARIABLE: &str = "PELLUCID_TOKEN";
/// Plans of a request for branches, so that its body stays small.
const BRANCHES_TOGETHER: usize = 256;

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The bearer token; by default that of [`TOKEN_VARIABLE`], if it is set.
    pub token: Option<String>,
    /// The model or alias; by default the server's first model.
    pub model: Option<String>,
}

/// A model on a server. Clones share nothing but their configuration; each call has a connection of
/// its own.
#[derive(Clone)]
pub struct RemoteModel {
    connection: Connection,
    id: String,
    outline: ModelOutline,
    local: LoadedModel,
}

/// The result of a run.
pub struct RemoteRun {
    /// The result of the engine.
    pub run: Run,
    /// Time in the engine of the server.
    pub time: Duration,
    /// Where the first NaN appears, if it was looked for and found.
    pub nan: Option<NanOrigin>,
}

/// The result of a generation.
pub struct RemoteGeneration {
    /// The result of the engine.
    pub generation: Generation,
    /// The first activation that is not finite, in words, if it was looked for and found.
    pub non_finite: Option<String>,
}

/// The effects and the cost of a plan on the server.
#[derive(Debug, Deserialize)]
pub struct Explained {
    /// As text.
    pub text: String,
    /// As JSON.
    pub explanation: Box<RawValue>,
}

impl RemoteModel {
    /// Connects to a model of a server.
    pub fn connect(url: &str, options: ConnectOptions) -> Result<RemoteModel> {
        let from_environment = || std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        let token = options.token.or_else(from_environment);
        let connection = Connection::new(Address::parse(url)?, token.map(|token| token.trim().to_owned()))?;
        let query = options.model.map_or_else(String::new, |model| format!("&model={}", percent_encode(&model)));
        let bytes = connection.get(&format!("/v1/remote/outline?protocol={PROTOCOL}{query}"))?;
        let address = &connection.address;
        let hello: Hello = serde_json::from_slice(&bytes).map_err(|error| {
            Error::server(
                format!("{address} does not answer as a Pellucid server does: {error}"),
                "check the URL: `pellucid serve` prints it",
            )
        })?;
        let Some(outline) = hello.outline.filter(|_| hello.protocol == PROTOCOL) else {
            let age = if hello.protocol > PROTOCOL { "newer" } else { "older" };
            return Err(Error::server(
                format!(
                    "the server at {address} (version {}) is {age} than this client (version {}): it speaks protocol \
                     {}, and the client {PROTOCOL}",
                    hello.version,
                    env!("CARGO_PKG_VERSION"),
                    hello.protocol
                ),
                "install the same version on both machines",
            ));
        };
        let local = LoadedModel::without_weights(&outline)?;
        Ok(RemoteModel { connection, id: hello.id, outline, local })
    }

    /// The server.
    pub fn address(&self) -> &Address {
        &self.connection.address
    }

    /// The model's name on the server.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the server says about the model.
    pub fn outline(&self) -> &ModelOutline {
        &self.outline
    }

    /// The model without its weights: tokens, chats, sites, checks.
    pub fn local(&self) -> &LoadedModel {
        &self.local
    }

    /// Runs rows, as [`Model::run`](pellucid_engine::Model::run) does. With `locate_nan` the server
    /// finds where NaN first appears in a run that has some.
    pub fn run(&self, rows: &[Vec<u32>], plan: &Plan, options: &RunOptions, locate_nan: bool) -> Result<RemoteRun> {
        refuse("threads", options.threads.is_some())?;
        refuse("prefixes", options.prefixes.is_some())?;
        refuse("adapters", options.adapters != RowAdapters::default())?;
        self.check_captures(&options.captures)?;
        self.local.model.check_run(rows, plan, options)?;
        let call = RunCall {
            model: self.id.clone(),
            rows: rows.to_vec(),
            plan: plan_for_wire(plan),
            chunk: options.chunk,
            recompute: options.recompute,
            bf16: options.captures.dtype == CaptureDtype::Bf16,
            locate_nan,
        };
        let bytes = self.connection.post("/v1/remote/run", body(&call)?, options.interrupt.as_ref())?;
        let results = WireResults::decode(&bytes)?;
        let (time, nan) = (results.first, results.nan);
        Ok(RemoteRun { run: results.into_run(), time, nan })
    }

    /// Runs branches of a row, as [`Base::branches`](pellucid_engine::Base::branches) does; `plan`
    /// has the edits of all branches.
    pub fn branches(
        &self,
        tokens: &[u32],
        plan: &Plan,
        branches: &[Plan],
        interrupt: Option<&Interrupt>,
    ) -> Result<Vec<Run>> {
        let mut runs = Vec::with_capacity(branches.len());
        for chunk in branches.chunks(BRANCHES_TOGETHER) {
            let call = BranchesCall {
                model: self.id.clone(),
                tokens: tokens.to_vec(),
                plan: plan_for_wire(plan),
                branches: chunk.iter().map(plan_for_wire).collect(),
            };
            let end = runs.len() + chunk.len();
            self.stream("/v1/remote/branches", &call, interrupt, &mut |_, _| {}, &mut |results| {
                runs.push(results.into_run());
            })?;
            if runs.len() != end {
                return Err(self.incomplete());
            }
        }
        Ok(runs)
    }

    /// Generates, as [`LoadedModel::generate`] does. With `locate_non_finite` the server finds the
    /// first activation that is not finite if a logit or a result is not.
    pub fn generate(
        &self,
        rows: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
        stops: &StopStrings,
        locate_non_finite: bool,
        watch: &mut dyn FnMut(TextPiece<'_>),
    ) -> Result<RemoteGeneration> {
        refuse("threads", options.threads.is_some())?;
        refuse("prefixes", options.prefixes.is_some())?;
        refuse("adapters", options.adapters != RowAdapters::default())?;
        refuse("logprobs", options.logprobs != Default::default())?;
        self.check_captures(&options.captures)?;
        self.local.model.check_generate(rows, plan, options)?;
        let call = GenerateCall {
            model: self.id.clone(),
            rows: rows.to_vec(),
            plan: plan_for_wire(plan),
            max_new: options.max_new,
            sampling: options.sampling.clone(),
            eos: options.eos.clone(),
            stop: stops.as_slice().to_vec(),
            chunk: options.chunk,
            lookup: options.lookup,
            bf16: options.captures.dtype == CaptureDtype::Bf16,
            locate_non_finite,
        };
        let mut received = None;
        self.local.watch_text(rows.len(), options, stops, watch, |on_token| {
            let mut on_token = |row: usize, token: u32| {
                // The server ends rows by the same stop strings.
                if row < rows.len() {
                    let _: Control = on_token(row, token);
                }
            };
            self.stream("/v1/remote/generate", &call, options.interrupt.as_ref(), &mut on_token, &mut |results| {
                received = Some(results);
            })
        })?;
        let results = received.ok_or_else(|| self.incomplete())?;
        let non_finite = results.non_finite.clone();
        Ok(RemoteGeneration { generation: results.into_generation(), non_finite })
    }

    /// Fetches a weight as f32.
    pub fn weight(&self, name: &str) -> Result<Array> {
        let mut arrays = self.arrays(&format!("name={}", percent_encode(name)))?;
        arrays.pop().ok_or_else(|| self.incomplete())
    }

    /// Fetches the weight and the bias of the op that computes a site.
    pub fn weight_of(&self, site: Site) -> Result<(Array, Option<Array>)> {
        let mut arrays = self.arrays(&format!("site={}", percent_encode(&site.to_string())))?.into_iter();
        let weight = arrays.next().ok_or_else(|| self.incomplete())?;
        Ok((weight, arrays.next()))
    }

    fn arrays(&self, query: &str) -> Result<Vec<Array>> {
        let model = percent_encode(&self.id);
        let bytes = self.connection.get(&format!("/v1/remote/weights?model={model}&{query}"))?;
        let ((), arrays) = ArrayFile::decode(&bytes)?;
        Ok(arrays)
    }

    /// Applies the final norm and the unembedding to vectors `[n, width]`.
    pub fn unembed(&self, stream: &Array) -> Result<Array> {
        let mut plan = Plan::default();
        let stream = plan.value(Expr::Constant(stream.clone()));
        let logits = plan.value(Expr::Unembed(stream));
        plan.save_value(logits);
        let mut run = self.run(&[vec![0]], &plan, &RunOptions::default(), false)?.run;
        run.saved.pop().map(|saved| saved.array).ok_or_else(|| self.incomplete())
    }

    /// Explains what a plan does and costs for rows of these lengths on the server.
    pub fn explain(&self, plan: &Plan, lengths: &[usize]) -> Result<Explained> {
        let rows: Vec<Vec<u32>> = lengths.iter().map(|&length| vec![0; length]).collect();
        self.local.model.check_run(&rows, plan, &RunOptions::default())?;
        let plan = serde_json::to_value(plan).map_err(not_data)?;
        self.ask("/v1/explain", serde_json::json!({ "prompt": rows, "plan": plan }))
    }

    /// Sends a request of an API that answers with JSON, such as `/v1/explain`. The fields of
    /// `fields` and the model's name are the body.
    pub fn ask<T: DeserializeOwned>(&self, path: &str, fields: serde_json::Value) -> Result<T> {
        let mut fields = fields;
        fields["model"] = self.id.clone().into();
        let bytes = self.connection.post(path, body(&fields)?, None)?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::server(
                format!("the server at {} answers {path} with another format: {error}", self.address()),
                "install the same version on both machines",
            )
        })
    }

    /// Sends a call and reads its stream.
    fn stream(
        &self,
        path: &str,
        call: &impl Serialize,
        interrupt: Option<&Interrupt>,
        on_token: &mut dyn FnMut(usize, u32),
        on_results: &mut dyn FnMut(WireResults),
    ) -> Result<()> {
        let mut answer = self.connection.post_stream(path, body(call)?, interrupt)?;
        loop {
            let frame = FrameReader::new(&mut answer).next_frame();
            match frame.map_err(|error| answer.failure(&error))? {
                (Frame::Token(row, token), _) => on_token(row, token),
                (Frame::Results { .. }, bytes) => on_results(WireResults::decode(&bytes)?),
                (Frame::Failed { fault: Some(fault), .. }, _) => return Err(fault.into_error().into()),
                (Frame::Failed { message, fault: None }, _) => {
                    let problem = format!("the server at {} ended the call: {message}", self.address());
                    return Err(Error::server(problem, "the log of the server shows more"));
                }
                (Frame::End, _) => return Ok(()),
            }
        }
    }

    fn check_captures(&self, captures: &pellucid_engine::CaptureOptions) -> Result<()> {
        refuse("capture_memory", captures.memory_limit.is_some())?;
        refuse("capture_folder", captures.spill_folder.is_some())
    }

    fn incomplete(&self) -> Error {
        let problem = format!("the server at {} ended the call without its results", self.address());
        Error::server(problem, "the log of the server shows more")
    }
}

/// Refuses an option that concerns the machine that runs the model.
fn refuse(option: &str, is_set: bool) -> Result<()> {
    match is_set {
        false => Ok(()),
        true => Err(Error::Usage {
            problem: format!("`{option}` is an option of the process that runs the model, which is the server"),
            hint: format!("leave out `{option}`"),
        }),
    }
}

fn body(call: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(call).map_err(not_data)
}

fn not_data(error: serde_json::Error) -> Error {
    Error::Usage {
        problem: format!("the plan cannot be sent to the server: {error}"),
        hint: "plans travel as data: functions (hooks, `call`) run only in the process that has the model".into(),
    }
}

fn percent_encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
