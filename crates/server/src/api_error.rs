//! Errors in the shape of the OpenAI API: `{"error": {"message", "type", "param", "code"}}`.

use crate::hints;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use pellucid_models::wire::Fault;
use serde::Serialize;
use utoipa::ToSchema;

/// Code of a request for a model that waited in vain for the memory of models in use.
pub const MODELS_BUSY: &str = "models_busy";

/// An error of a request.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub detail: ErrorDetail,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// The problem, and what to do about it.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `permission_error`, `rate_limit_error` or
    /// `server_error`.
    pub r#type: &'static str,
    /// The field that is wrong.
    pub param: Option<String>,
    /// A short name of the problem, such as `model_not_found`.
    pub code: Option<&'static str>,
    /// The error as data, in answers to clients of this project.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Box<Fault>>,
}

/// The body of an error.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// Result of a handler.
pub type ApiResult<T> = std::result::Result<T, ApiError>;

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        ApiError {
            status,
            detail: ErrorDetail { message: message.into(), r#type: kind, param: None, code: None, fault: None },
        }
    }

    /// A field with a wrong value.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message).with_param(param)
    }

    /// A field that would change the answer and is not supported.
    pub fn refused(param: &str, why: &str) -> ApiError {
        ApiError::field(param, format!("`{param}` is not supported: {why}")).with_code("unsupported_parameter")
    }

    /// A fault of the server.
    pub fn internal() -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the log of the server shows it")
    }

    /// Something that the server does not have now.
    pub fn unavailable(message: impl Into<String>, code: &'static str) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code(code)
    }

    /// Names the field, unless the error has one.
    pub fn with_param(mut self, param: impl Into<String>) -> ApiError {
        self.detail.param.get_or_insert(param.into());
        self
    }

    /// Names the field, also if the error has one.
    pub fn about(mut self, param: impl Into<String>) -> ApiError {
        self.detail.param = Some(param.into());
        self
    }

    /// Says where the problem is, before the message.
    pub fn within(mut self, place: &str) -> ApiError {
        self.detail.message = format!("{place}: {}", self.detail.message);
        self
    }

    pub fn with_code(mut self, code: &'static str) -> ApiError {
        self.detail.code = Some(code);
        self
    }

    /// The body of the response.
    pub fn body(&self) -> ErrorBody {
        ErrorBody { error: self.detail.clone() }
    }

    /// A short name of the error for metrics.
    pub fn kind(&self) -> &'static str {
        self.detail.code.unwrap_or(self.detail.r#type)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.body()).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.detail.code == Some(MODELS_BUSY) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert("www-authenticate", HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(ErrorKind(self.kind()));
        response
    }
}

/// The kind of an error, beside its response, for metrics.
#[derive(Clone, Copy)]
pub struct ErrorKind(pub &'static str);

impl From<pellucid_engine::Error> for ApiError {
    fn from(error: pellucid_engine::Error) -> ApiError {
        use pellucid_engine::Error;
        let status = match &error {
            Error::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            // A smaller request may fit, this one does not.
            Error::Memory { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Error::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
            Error::Internal(_) | Error::Architecture { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Error::Site { .. } | Error::Plan { .. } | Error::Value { .. } | Error::Several(_) | Error::Input { .. } => {
                StatusCode::BAD_REQUEST
            }
        };
        let message = match error.remedy().map(hints::word) {
            Some(hint) => format!("{error}; {hint}"),
            None => error.to_string(),
        };
        ApiError::new(status, message)
    }
}

impl From<pellucid_models::Error> for ApiError {
    fn from(error: pellucid_models::Error) -> ApiError {
        use pellucid_models::Error;
        let hint = error.remedy().map(hints::word);
        let problem = match error {
            Error::Engine(error) => return error.into(),
            // Paths of the server's files are none of the client's business.
            Error::Invalid { problem, .. } => problem,
            Error::Io { source, .. } => {
                return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("a file cannot be read: {source}"));
            }
            error => error.to_string(),
        };
        let message = hint.map_or(problem.clone(), |hint| format!("{problem}; {hint}"));
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }
}
