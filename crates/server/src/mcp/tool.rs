//! The trait of tools, and a tool as an entry of the table: schemas from its types, arguments
//! parsed as strictly as a request's body.

use super::progress::Progress;
use crate::api_error::{ApiError, ApiResult};
use crate::body::{Json, RequestBody};
use crate::state::AppState;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool as Description, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;
use std::future::Future;
use std::sync::Arc;

/// A tool: typed arguments in, a typed answer out.
pub trait Tool: 'static {
    /// Its name in calls.
    const NAME: &'static str;
    /// A short title for people.
    const TITLE: &'static str;
    /// What it does and when to use it, for the agent that chooses it.
    const DESCRIPTION: &'static str;
    type Input: RequestBody + JsonSchema + Send + 'static;
    type Output: Serialize + JsonSchema + Send + 'static;

    /// Arguments that work on the built-in model; part of the schema.
    fn example() -> Value;

    /// Answers a call. Dropping the future interrupts the engine.
    fn call(
        state: AppState,
        input: Self::Input,
        progress: Progress,
    ) -> impl Future<Output = ApiResult<Self::Output>> + Send;

    /// The answer in a few lines.
    fn text(output: &Self::Output) -> String;
}

/// The work of a call.
type Call = fn(AppState, Value, Progress) -> BoxFuture<'static, ApiResult<CallToolResult>>;

/// A row of the table of tools.
pub struct Entry {
    pub description: Description,
    pub call: Call,
}

impl Entry {
    pub fn of<T: Tool>() -> Entry {
        let settings = SchemaSettings::draft2020_12();
        let mut input = schema::<T::Input>(settings.clone());
        // A misspelled argument is an error, as `parse` treats it.
        input.insert("additionalProperties".into(), false.into());
        input.insert("examples".into(), Value::Array(vec![T::example()]));
        let annotations = ToolAnnotations::new().read_only(true).destructive(false).open_world(false);
        let description = Description::new(T::NAME, T::DESCRIPTION, input)
            .with_title(T::TITLE)
            .with_raw_output_schema(Arc::new(schema::<T::Output>(settings.for_serialize())))
            .with_annotations(annotations);
        Entry { description, call: |state, arguments, progress| call::<T>(state, arguments, progress).boxed() }
    }
}

fn schema<T: JsonSchema>(settings: SchemaSettings) -> JsonObject {
    let schema = settings.into_generator().into_root_schema_for::<T>();
    match schema.to_value() {
        Value::Object(object) => object,
        // The schema of a struct is an object.
        _ => JsonObject::default(),
    }
}

async fn call<T: Tool>(state: AppState, arguments: Value, progress: Progress) -> ApiResult<CallToolResult> {
    let input = parse::<T::Input>(&arguments)?;
    let output = T::call(state, input, progress).await?;
    let mut result = CallToolResult::success(vec![ContentBlock::text(T::text(&output))]);
    let internal = |error: serde_json::Error| ApiError::from(pellucid_engine::Error::Internal(error.to_string()));
    result.structured_content = Some(serde_json::to_value(output).map_err(internal)?);
    Ok(result)
}

/// Parses arguments. A field that the tool does not have is an error: an agent that misspells one
/// would not notice a warning.
fn parse<T: RequestBody>(arguments: &Value) -> ApiResult<T> {
    let Json { value, warnings } = Json::parse(arguments.to_string().into_bytes())?;
    match warnings.first() {
        None => Ok(value),
        Some(warning) => {
            let name = warning.split('`').nth(1).unwrap_or_default().to_owned();
            let message = format!("there is no argument `{name}`; the tool's input schema lists the arguments");
            Err(ApiError::field(name, message))
        }
    }
}
