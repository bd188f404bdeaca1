//! Errors of tools: a text that names the field and the remedy, for the agent to act on.

use crate::api_error::ApiError;
use rmcp::model::{CallToolResult, ContentBlock};

/// Remedies that name routes, and the tools that do the same.
const TOOLS: [(&str, &str); 6] = [
    ("GET /v1/sites lists", "the tool `sites` lists"),
    ("GET /v1/sites shows", "the tool `sites` shows"),
    ("GET /v1/models lists", "the tool `describe` lists"),
    ("; POST /tokenize lists them", "; the tool `run` lists them"),
    ("/openapi.json describes the fields", "the tool's input schema describes the arguments"),
    ("use /v1/completions, or start", "give `prompt` instead of `messages`, or start"),
];

/// The result of a call that failed.
pub fn result(error: &ApiError) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text(error))])
}

fn text(error: &ApiError) -> String {
    let worded = TOOLS.iter().fold(error.detail.message.clone(), |text, (route, tool)| text.replace(route, tool));
    let worded = worded.replace("the request has", "the call has").replace("plans over HTTP name", "plans name");
    match &error.detail.param {
        Some(param) if !worded.contains(param.as_str()) => format!("{param}: {worded}"),
        _ => worded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints;
    use pellucid_engine::Remedy;

    #[test]
    fn remedies_name_tools_and_no_routes() {
        for remedy in Remedy::examples() {
            let text = text(&ApiError::field("plan", hints::word(&remedy)));
            assert!(!text.contains("/v1/") && !text.contains("POST ") && !text.contains("openapi"), "{text}");
            assert!(text.starts_with("plan: ") || text.contains("plan"), "{text}");
        }
    }
}
