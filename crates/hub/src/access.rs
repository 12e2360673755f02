//! Whether the hub can be reached, and with which token.

use crate::{client, environment};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// How this process would use the hub, by its environment variables.
#[derive(Clone)]
pub struct HubAccess {
    endpoint: String,
    token: Option<(String, TokenPlace)>,
    offline: bool,
}

/// Where a token comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenPlace {
    /// The environment variable `HF_TOKEN`.
    Environment,
    /// A file, which `hf auth login` writes.
    File(PathBuf),
}

/// What the hub answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubAnswer {
    /// It answers. No token was sent.
    Reached,
    /// It knows the token.
    TokenAccepted {
        /// The name of the token's account, if the hub says it.
        account: Option<String>,
    },
    /// It refuses the token.
    TokenRefused,
    /// It answers with an error.
    Status(u16),
    /// There is no answer.
    Unreachable(String),
}

impl HubAccess {
    /// Reads the environment variables of Hugging Face's tools.
    #[must_use]
    pub fn from_environment() -> Self {
        let home = environment::hub_home();
        Self {
            endpoint: environment::endpoint(),
            token: environment::token(home.as_deref()),
            offline: environment::is_offline(),
        }
    }

    /// Returns the address of the hub.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns where the token comes from, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<&TokenPlace> {
        self.token.as_ref().map(|(_, place)| place)
    }

    /// Returns whether `HF_HUB_OFFLINE` is set.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// Asks the hub, with the token if there is one. Takes at most about `timeout`.
    #[must_use]
    pub fn ask(&self, timeout: Duration) -> HubAnswer {
        let agent =
            client::agent(timeout, timeout).timeout_global(Some(timeout)).build().new_agent();
        let address = match &self.token {
            Some(_) => format!("{}/api/whoami-v2", self.endpoint.trim_end_matches('/')),
            None => format!("{}/api/models?limit=1", self.endpoint.trim_end_matches('/')),
        };
        let mut request = agent.get(&address);
        if let Some((token, _)) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let mut response = match request.call() {
            Ok(response) => response,
            Err(error) => return HubAnswer::Unreachable(error.to_string()),
        };
        match (response.status().as_u16(), &self.token) {
            (200..=299, Some(_)) => {
                let account = response.body_mut().read_to_vec().ok();
                let account = account.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
                let account = account.and_then(|value| Some(value["name"].as_str()?.to_owned()));
                HubAnswer::TokenAccepted { account }
            }
            (401 | 403, Some(_)) => HubAnswer::TokenRefused,
            // A mirror may lack this list.
            (200..=299 | 404, _) => HubAnswer::Reached,
            (status, _) => HubAnswer::Status(status),
        }
    }
}
