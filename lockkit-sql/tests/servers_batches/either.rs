//! Tests on either server.

/// Each of these functions is a test on either server.
macro_rules! on_either_server {
    ($($test:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Scene::on(super::ServerKind::Postgres).await).await;
            })*
        }
        mod mariadb {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Scene::on(super::ServerKind::MariaDb).await).await;
            })*
        }
    };
}
