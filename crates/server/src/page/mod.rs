//! The web page of the server: chat, where tokens come from, and what the devices did.

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// The paths, types and contents of the page's files.
const FILES: [(&str, &str, &str); 10] = [
    ("/", "text/html; charset=utf-8", include_str!("index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("/page/icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("main.js")),
    ("/page/api.js", SCRIPT, include_str!("api.js")),
    ("/page/answer.js", SCRIPT, include_str!("answer.js")),
    ("/page/conversation.js", SCRIPT, include_str!("conversation.js")),
    ("/page/markdown.js", SCRIPT, include_str!("markdown.js")),
    ("/page/measurements.js", SCRIPT, include_str!("measurements.js")),
    ("/page/timeline.js", SCRIPT, include_str!("timeline.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The page loads nothing from elsewhere, and no other page may contain it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the page. They need no key.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, content_type, content)| {
        let response = (
            [
                (header::CONTENT_TYPE, content_type),
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::REFERRER_POLICY, "no-referrer"),
                (header::CACHE_CONTROL, "no-cache"),
            ],
            content,
        );
        router.route(path, get(async move || response))
    })
}
