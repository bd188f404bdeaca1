//! Bodies of requests: their size, content type, fields.
//!
//! A body is JSON. Fields are typed structs; an error names the field by its path. Fields that no
//! struct has are ignored and reported in the `warnings` of the response, unless they are known to
//! change nothing ([`INERT`]).

use crate::api_error::{ApiError, ApiResult};
use crate::state::AppState;
use crate::unique_keys;
use axum::body::Body as HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Fields of the OpenAI API that do not change the answer of this server.
const INERT: &[&str] = &[
    "metadata",
    "moderation",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "skip_special_tokens",
    "store",
    "stream_options.include_obfuscation",
    "user",
    "verbosity",
];

/// The JSON of a request.
pub struct Source {
    bytes: Vec<u8>,
    /// Fields that no part has read so far; `None` before the first part.
    unread: RefCell<Option<BTreeSet<String>>>,
}

impl Source {
    pub fn new(bytes: Vec<u8>) -> Source {
        Source { bytes, unread: RefCell::new(None) }
    }

    /// Reads the fields of one struct. Several structs may read one body.
    pub fn part<T: DeserializeOwned>(&self) -> ApiResult<T> {
        let mut ignored = BTreeSet::new();
        let mut json = serde_json::Deserializer::from_slice(&self.bytes);
        let part = {
            // `?` stands for an `Option` on the way.
            let mut note = |path: serde_ignored::Path<'_>| _ = ignored.insert(path.to_string().replace(".?", ""));
            serde_path_to_error::deserialize(serde_ignored::Deserializer::new(&mut json, &mut note))
        };
        let part = part.map_err(|error| {
            let path = error.path().to_string();
            let inner = error.into_inner();
            match inner.is_syntax() || inner.is_eof() {
                true => ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {inner}")),
                false => field_error(&path, &inner.to_string()),
            }
        })?;
        json.end().map_err(|error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body has more than one JSON value: {error}"))
        })?;
        let mut unread = self.unread.borrow_mut();
        *unread = Some(match unread.take() {
            None => ignored,
            Some(before) => {
                let unread_by_both = before.iter().filter(|path| covers(&ignored, path));
                unread_by_both.chain(ignored.iter().filter(|path| covers(&before, path))).cloned().collect()
            }
        });
        Ok(part)
    }

    /// A warning for each field that no part has read.
    fn warnings(self) -> Vec<String> {
        let unread = self.unread.into_inner().unwrap_or_default();
        let is_unknown = |path: &String| !INERT.contains(&path.as_str());
        unread.into_iter().filter(is_unknown).map(|path| format!("unknown field `{path}` was ignored")).collect()
    }
}

/// Whether a set of paths has this one, or an object that contains it.
fn covers(paths: &BTreeSet<String>, path: &str) -> bool {
    let is_inside = |outer: &String| path.strip_prefix(outer.as_str()).is_some_and(|rest| rest.starts_with('.'));
    paths.contains(path) || paths.iter().any(is_inside)
}

/// The error of a field, from the path and the message of serde.
fn field_error(path: &str, message: &str) -> ApiError {
    // serde names a missing or repeated field in the message: it is at the end of no path.
    let message = message.split(" at line ").next().unwrap_or(message);
    let named = ["missing field `", "duplicate field `"].iter().find_map(|start| message.strip_prefix(start));
    let named = named.and_then(|rest| rest.split('`').next());
    match (path, named) {
        ("." | "", None) => ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not a request: {message}")),
        ("." | "", Some(name)) => ApiError::field(name, message),
        (path, Some(name)) if !path.ends_with(name) => ApiError::field(format!("{path}.{name}"), message),
        (path, _) => ApiError::field(path, format!("`{path}`: {message}")),
    }
}

/// A type that is read from one body, as one struct or several.
pub trait RequestBody: Sized {
    fn read(source: &Source) -> ApiResult<Self>;
}

/// Implements [`RequestBody`] for structs that are read as a whole.
macro_rules! whole_body {
    ($($name:ty),+) => {
        $(impl $crate::body::RequestBody for $name {
            fn read(source: &$crate::body::Source) -> $crate::api_error::ApiResult<Self> {
                source.part()
            }
        })+
    };
}
pub(crate) use whole_body;

/// Extracts a body.
pub struct Json<T> {
    pub value: T,
    /// Fields that were ignored.
    pub warnings: Vec<String>,
}

impl<T> Json<T> {
    /// Parses the bytes of a body.
    pub fn parse(bytes: Vec<u8>) -> ApiResult<Json<T>>
    where
        T: RequestBody,
    {
        unique_keys::check(&bytes)?;
        let source = Source::new(bytes);
        let value = T::read(&source)?;
        Ok(Json { value, warnings: source.warnings() })
    }
}

impl<T: RequestBody> FromRequest<AppState> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> ApiResult<Json<T>> {
        Json::parse(read_json(request, state).await?)
    }
}

/// Reads the bytes of a JSON body, within the server's limits of size and time.
pub async fn read_json(request: Request, state: &AppState) -> ApiResult<Vec<u8>> {
    let limits = &state.options.limits;
    check_content_type(request.headers())?;
    read_body(request, limits.body_bytes, limits.read_timeout).await
}

fn check_content_type(headers: &HeaderMap) -> ApiResult<()> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = given.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let problem = match given {
        "" => "the request has no content type".to_string(),
        given => format!("the content type {given:?} is not supported"),
    };
    let message = format!("{problem}; send JSON with `Content-Type: application/json`");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).with_code("unsupported_media_type"))
}

/// Reads a body of at most `limit` bytes. A larger `Content-Length` is refused before the body
/// arrives.
async fn read_body(request: Request, limit: usize, timeout: std::time::Duration) -> ApiResult<Vec<u8>> {
    let too_large = || {
        let message = format!("the body has more than {limit} bytes, the limit of this server");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).with_code("body_too_large")
    };
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let body: HttpBody = request.into_body();
    match tokio::time::timeout(timeout, Limited::new(body, limit).collect()).await {
        Err(_) => {
            let message = format!("the body did not arrive within {} s", timeout.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message).with_code("body_timeout"))
        }
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::new(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}"))),
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct First {
        model: Option<String>,
        #[serde(default)]
        options: Option<Nested>,
    }

    #[derive(Debug, Deserialize)]
    struct Nested {
        count: u32,
    }

    #[derive(Debug, Deserialize)]
    struct Second {
        temperature: Option<f32>,
    }

    struct Both(First, Second);

    impl RequestBody for Both {
        fn read(source: &Source) -> ApiResult<Both> {
            Ok(Both(source.part()?, source.part()?))
        }
    }

    fn parse(text: &str) -> ApiResult<Json<Both>> {
        Json::parse(text.as_bytes().to_vec())
    }

    #[test]
    fn unknown_fields_are_reported_and_inert_ones_are_not() {
        let text = r#"{"model": "a", "temperature": 1, "tempreture": 2, "user": "u", "options": {"count": 1, "x": 2}}"#;
        let body = parse(text).unwrap();
        assert_eq!(body.warnings, ["unknown field `options.x` was ignored", "unknown field `tempreture` was ignored"]);
        assert_eq!(body.value.0.model.as_deref(), Some("a"));
        assert_eq!((body.value.1.temperature, body.value.0.options.map(|nested| nested.count)), (Some(1.0), Some(1)));
    }

    #[test]
    fn errors_name_the_field() {
        let param = |text: &str| parse(text).err().unwrap().detail.param;
        assert_eq!(param(r#"{"temperature": "hot"}"#).as_deref(), Some("temperature"));
        assert_eq!(param(r#"{"options": {"count": -1}}"#).as_deref(), Some("options.count"));
        assert_eq!(param(r#"{"options": {}}"#).as_deref(), Some("options.count"));
        assert_eq!(param(r#"{"model": "a", "model": "b"}"#).as_deref(), Some("model"));
        assert_eq!(param(r#"{"model": "#), None);
        assert_eq!(param("{} {}"), None);
        assert_eq!(param("[]"), None);
    }
}
