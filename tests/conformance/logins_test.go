package conformance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// login is one case of the file that LOGINS names; conformance/logins.py writes it.
type login struct {
	Name        string `json:"name"`
	Seeds       string `json:"seeds"`
	Topic       string `json:"topic"`
	Mechanism   string `json:"mechanism"`
	IsToken     bool   `json:"is_token"`
	User        string `json:"user"`
	Password    string `json:"password"`
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	IsRight     bool   `json:"is_right"`
}

func (l login) options(t *testing.T) []kgo.Opt {
	options := []kgo.Opt{
		kgo.SeedBrokers(l.Seeds),
		kgo.RecordDeliveryTimeout(10 * time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if l.CA != "" {
		roots := x509.NewCertPool()
		ca, err := os.ReadFile(l.CA)
		if err != nil || !roots.AppendCertsFromPEM(ca) {
			t.Fatalf("no certificates in %s: %v", l.CA, err)
		}
		config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
		if l.Certificate != "" {
			pair, err := tls.LoadX509KeyPair(l.Certificate, l.Key)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	auth := scram.Auth{User: l.User, Pass: l.Password, IsToken: l.IsToken}
	switch l.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: l.User, Pass: l.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(auth.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(auth.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: l.Password}.AsMechanism()))
	}
	return options
}

// exchange produces a record and consumes it.
func (l login) exchange(t *testing.T) error {
	timeout := 20 * time.Second
	if !l.IsRight {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	producer, err := kgo.NewClient(l.options(t)...)
	if err != nil {
		return err
	}
	defer producer.Close()
	if err := producer.Ping(ctx); err != nil {
		return err
	}
	record := &kgo.Record{Topic: l.Topic, Value: []byte(l.Name)}
	if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
		return err
	}
	from := map[string]map[int32]kgo.Offset{l.Topic: {0: kgo.NewOffset().At(record.Offset)}}
	consumer, err := kgo.NewClient(append(l.options(t), kgo.ConsumePartitions(from))...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		if records := fetches.Records(); len(records) > 0 {
			if value := string(records[0].Value); value != l.Name {
				t.Errorf("consumed %q", value)
			}
			return nil
		}
	}
}

// TestLogins logs in with each case.
func TestLogins(t *testing.T) {
	file, exists := os.LookupEnv("LOGINS")
	if !exists {
		t.Skip("LOGINS is not set")
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var logins []login
	if err := json.Unmarshal(content, &logins); err != nil {
		t.Fatal(err)
	}
	for _, l := range logins {
		t.Run(strings.ReplaceAll(l.Name, ", ", "/"), func(t *testing.T) {
			err := l.exchange(t)
			if l.IsRight && err != nil {
				t.Errorf("%s: %v", l.Name, err)
			}
			if !l.IsRight && err == nil {
				t.Errorf("%s: accepted", l.Name)
			}
			if !l.IsRight && l.Mechanism != "" && err != nil && !strings.Contains(err.Error(), "SASL_AUTHENTICATION_FAILED") {
				t.Errorf("%s: refused with another error: %v", l.Name, err)
			}
		})
	}
}
