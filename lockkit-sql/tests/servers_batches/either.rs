//! Tests on either server.

/// Each of these functions is a test on either server.
macro_rules! on_either_server {
    ($($test:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Scene::on(super::Kind::Postgres).await).await;
            })*
        }
        mod mariadb {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Scene::on(super::Kind::MariaDb).await).await;
            })*
        }
    };
}
