-- One row for each partition: how far it is, and the token of its last consumer.
CREATE TABLE consumer (part INT PRIMARY KEY, position BIGINT NOT NULL, token BIGINT NOT NULL);
INSERT INTO consumer VALUES (7, 0, 0);
CREATE TABLE queue (part INT NOT NULL, position BIGINT NOT NULL, cents BIGINT NOT NULL, PRIMARY KEY (part, position));
CREATE TABLE account (part INT PRIMARY KEY, cents BIGINT NOT NULL);
INSERT INTO account VALUES (7, 0);
CREATE TABLE applied (position BIGINT NOT NULL, consumer TEXT NOT NULL);
